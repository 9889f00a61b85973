//! What is done to volumes: a driver's calls, and what has to stand on the disk around them.
//!
//! | room | what is there |
//! |---|---|
//! | `stage`, `publish` | a volume on its way to a pod, and back |
//! | `place`, `record` | directories and records |
//! | `reconstruct`, `orphan`, `tree` | what is found on the disk, and what nobody has any more |
//! | `runtime`, `stats` | what the runtime handler is told and asked, and the driver |
//! | `paths` | where a container's volumes are |
//! | `storage`, `expand` | volumes that are made, grow and are destroyed |
//! | `group`, `subpath` | what a kubelet does to a file system that the driver has mounted |

mod error;
mod expand;
mod group;
mod orphan;
mod paths;
mod place;
mod publish;
mod reconstruct;
mod record;
mod runtime;
mod stage;
mod stats;
mod storage;
mod subpath;
mod tree;

use std::collections::HashMap;
use std::sync::Arc;

use crate::csi::Driver;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::objects::{Name, Objects};
use crate::plugins::Drivers;
use crate::volumes::layout::Layout;
use crate::volumes::spec::VolumeId;

pub(crate) use error::{Attempt, OperationError};
pub(crate) use expand::{Expansion, expand};
pub(crate) use orphan::remove_pod;
pub(crate) use paths::{Place, Wanted, paths};
pub(crate) use place::directory as make_directory;
pub(crate) use publish::{Publication, Published, publish, unpublish};
pub(crate) use reconstruct::{Broken, Found, FoundPod, clean, reconstruct};
pub(crate) use record::record;
pub(crate) use runtime::{Late, Telling, tell};
pub(crate) use stage::{stage, unstage};
pub(crate) use stats::stats;
pub(crate) use storage::{abilities, create, delete, grow};

/// What operations work with.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// Where things are.
    pub(crate) layout: Layout,
    /// What the node is called.
    pub(crate) node: Arc<str>,
    /// Those that are there.
    pub(crate) drivers: Drivers,
    /// What happens.
    pub(crate) events: Events,
    /// How often, and how long it takes.
    pub(crate) metrics: Arc<Metrics>,
}

impl Context {
    fn driver(&self, id: &VolumeId) -> Result<Driver, OperationError> {
        self.driver_by(&id.driver)
    }

    fn driver_by(&self, name: &str) -> Result<Driver, OperationError> {
        let driver = self.drivers.get(name);
        driver.ok_or_else(|| OperationError::NoDriver(name.to_owned()))
    }
}

/// A secret's values, which go to the driver and nowhere else.
fn secret(
    objects: &Objects,
    name: Option<&Name>,
) -> Result<HashMap<String, String>, OperationError> {
    let Some(name) = name else {
        return Ok(HashMap::new());
    };
    let missing = || OperationError::NoSecret(name.clone());
    let secret = objects.secrets.get(name).ok_or_else(missing)?;
    let mut values = HashMap::new();
    for (key, value) in secret.data.iter().flatten() {
        let text = String::from_utf8(value.0.clone());
        let text = text.map_err(|_| OperationError::Secret(name.clone(), key.clone()))?;
        values.insert(key.clone(), text);
    }
    let plain = secret.string_data.iter().flatten();
    values.extend(plain.map(|(key, value)| (key.clone(), value.clone())));
    Ok(values)
}

/// Runs what blocks.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OperationError> + Send + 'static,
) -> Result<T, OperationError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| OperationError::Task(error.to_string()))?
}

//! Operations on volumes: a driver's calls, and the directories and records around them.
//!
//! | module | contents |
//! |---|---|
//! | `stage`, `publish` | staging and publishing a volume, and the other way |
//! | `published` | usage, health and growth of a published volume |
//! | `controller` | the driver's controller service: volumes are made, grown and deleted |
//! | `runtime` | a runtime handler that mounts volumes after the sandbox exists |
//! | `directories`, `pod_directory` | the directories and records of volumes and pods |
//! | `reconstruct`, `tree` | what is found on the disk after a restart, and removed |
//! | `paths` | the paths that containers get |
//! | `group`, `subpath` | kubelet's part for a file system that the driver has mounted |

mod controller;
mod directories;
mod error;
mod group;
mod paths;
mod pod_directory;
mod publish;
mod published;
mod reconstruct;
mod runtime;
mod stage;
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

pub(crate) use controller::{abilities, create, delete, grow};
pub(crate) use directories::directory as make_directory;
pub(crate) use error::{Attempt, OperationError};
pub(crate) use paths::{PathRequest, VolumeKind, paths};
pub(crate) use pod_directory::{record, remove_pod};
pub(crate) use publish::{Publication, Published, publish, unpublish};
pub(crate) use published::{Expansion, expand, stats};
pub(crate) use reconstruct::{Broken, Found, FoundPod, clean, reconstruct};
pub(crate) use runtime::{LateMount, MountingRuntime, tell};
pub(crate) use stage::{stage, unstage};

/// The state that operations share.
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

//! Operations on volumes: the calls to the driver, and the directories and records that belong to these calls.
//!
//! | module | contents |
//! |---|---|
//! | `stage`, `publish` | stages, publishes, unpublishes and unstages volumes |
//! | `published` | usage, health and expansion of a published volume |
//! | `controller` | the driver's controller service: creates, expands and deletes volumes |
//! | `runtime` | a runtime handler that mounts volumes once the sandbox exists |
//! | `directories`, `pod_directory` | the directories and records of volumes and pods |
//! | `reconstruct`, `tree` | reads the disk after a restart, and removes leftover directories |
//! | `paths` | the host paths of containers' mounts |
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
use crate::volumes::layout::RootDirLayout;
use crate::volumes::spec::VolumeId;

pub(crate) use controller::{controller_expand, create_volume, delete_volume, driver_capabilities};
pub(crate) use directories::create_directory;
pub(crate) use error::{FailedOperation, OperationError};
pub(crate) use paths::{PathRequest, VolumeKind, mount_sources};
pub(crate) use pod_directory::{remove_pod, write_pod_record};
pub(crate) use publish::{Publication, PublishResult, publish, unpublish};
pub(crate) use published::{Expansion, node_expand, stats};
pub(crate) use reconstruct::{
    ReconstructedPod, ReconstructedState, UnreadableVolume, force_cleanup, reconstruct,
};
pub(crate) use runtime::{MountingRuntime, RuntimeMount, publish_to_runtime};
pub(crate) use stage::{stage, unstage};

/// The state that operations share.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) layout: RootDirLayout,
    pub(crate) node: Arc<str>,
    pub(crate) drivers: Drivers,
    pub(crate) events: Events,
    pub(crate) metrics: Arc<Metrics>,
}

impl Context {
    fn driver(&self, id: &VolumeId) -> Result<Driver, OperationError> {
        self.driver_by(&id.driver)
    }

    fn driver_by(&self, name: &str) -> Result<Driver, OperationError> {
        let driver = self.drivers.get(name);
        driver.ok_or_else(|| OperationError::DriverNotRegistered(name.to_owned()))
    }
}

/// Returns the values of a Secret. They must be passed only to the driver.
fn secret(
    objects: &Objects,
    name: Option<&Name>,
) -> Result<HashMap<String, String>, OperationError> {
    let Some(name) = name else {
        return Ok(HashMap::new());
    };
    let missing = || OperationError::SecretNotFound(name.clone());
    let secret = objects.secrets.get(name).ok_or_else(missing)?;
    let mut values = HashMap::new();
    for (key, value) in secret.data.iter().flatten() {
        let text = String::from_utf8(value.0.clone());
        let text = text.map_err(|_| OperationError::SecretNotUtf8(name.clone(), key.clone()))?;
        values.insert(key.clone(), text);
    }
    let string_data = secret.string_data.iter().flatten();
    values.extend(string_data.map(|(key, value)| (key.clone(), value.clone())));
    Ok(values)
}

/// Runs a blocking function on a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OperationError> + Send + 'static,
) -> Result<T, OperationError> {
    let result = tokio::task::spawn_blocking(work).await;
    result.map_err(|error| OperationError::Other(error.to_string()))?
}

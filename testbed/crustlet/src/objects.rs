//! The objects that manifests can contain: pods, claims, volumes, classes, drivers and secrets.
//!
//! The types are Kubernetes' own, with the additional fields of the KEPs.

pub(crate) mod manifest;
pub(crate) mod name;
mod pod;
pub(crate) mod quantity;
mod unreadable;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::node::v1::RuntimeClass as RuntimeClassObject;
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass as StorageClassObject};
use serde_json::Value;

use manifest::{Manifest, Object};

pub(crate) use name::{Kind, Name};
pub(crate) use pod::{Pod, set_deferred};

/// A storage class, with the additional field of KEP-2857's earlier draft.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StorageClass {
    pub(crate) object: StorageClassObject,
    pub(crate) allow_runtime_assisted_mount: bool,
}

/// A runtime class, with the additional field of KEP-2857's earlier draft.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuntimeClass {
    pub(crate) object: RuntimeClassObject,
    /// `fsMgmtSocket`: the socket of the runtime handler's storage interface.
    pub(crate) fs_mgmt_socket: Option<PathBuf>,
}

/// The objects of all manifests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Objects {
    pub(crate) pods: BTreeMap<Name, Arc<Pod>>,
    pub(crate) claims: BTreeMap<Name, Arc<PersistentVolumeClaim>>,
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub(crate) storage_classes: BTreeMap<String, Arc<StorageClass>>,
    pub(crate) runtime_classes: BTreeMap<String, Arc<RuntimeClass>>,
    pub(crate) drivers: BTreeMap<String, Arc<CSIDriver>>,
    pub(crate) secrets: BTreeMap<Name, Arc<Secret>>,
    /// The document of each object, as it is in its manifest.
    pub(crate) documents: BTreeMap<(Kind, Name), Arc<Value>>,
}

impl Objects {
    /// Clears `deferFSMount` of all volumes.
    pub(crate) fn ignore_deferral(&mut self) {
        for pod in self.pods.values_mut() {
            if !pod.deferred.is_empty() {
                Arc::make_mut(pod).deferred.clear();
            }
        }
    }

    /// Adds an object, or replaces the object with the same kind and name.
    pub(crate) fn insert(&mut self, manifest: Manifest) {
        let Manifest {
            kind,
            name,
            document,
            object,
        } = manifest;
        self.documents
            .insert((kind, name.clone()), Arc::new(document));
        match object {
            Object::Pod(pod) => drop(self.pods.insert(name, Arc::from(pod))),
            Object::Claim(claim) => drop(self.claims.insert(name, Arc::from(claim))),
            Object::Volume(volume) => drop(self.volumes.insert(name.name, Arc::from(volume))),
            Object::StorageClass(class) => {
                drop(self.storage_classes.insert(name.name, Arc::new(class)));
            }
            Object::RuntimeClass(class) => {
                drop(self.runtime_classes.insert(name.name, Arc::new(class)));
            }
            Object::Driver(driver) => drop(self.drivers.insert(name.name, Arc::new(driver))),
            Object::Secret(secret) => drop(self.secrets.insert(name, Arc::new(secret))),
        }
    }
}

#[cfg(test)]
mod tests;

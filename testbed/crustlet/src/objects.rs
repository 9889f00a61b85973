//! The objects of manifests: pods, claims, volumes, classes, drivers, secrets.
//!
//! The types are Kubernetes' own, with the fields that the KEPs add beside them.

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
pub(crate) use pod::{Pod, defer};

/// A storage class.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StorageClass {
    /// As Kubernetes has it.
    pub(crate) object: StorageClassObject,
    /// `allowRuntimeAssistedMount` (KEP-2857's earlier draft).
    pub(crate) allow_runtime_assisted_mount: bool,
}

/// A runtime class.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RuntimeClass {
    /// As Kubernetes has it.
    pub(crate) object: RuntimeClassObject,
    /// `fsMgmtSocket` (KEP-2857's earlier draft): where the handler answers.
    pub(crate) fs_mgmt_socket: Option<PathBuf>,
}

/// All that is wanted, at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Objects {
    /// By their names, as all below.
    pub(crate) pods: BTreeMap<Name, Arc<Pod>>,
    /// Requests for storage.
    pub(crate) claims: BTreeMap<Name, Arc<PersistentVolumeClaim>>,
    /// Storage.
    pub(crate) volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// How storage is made.
    pub(crate) storage_classes: BTreeMap<String, Arc<StorageClass>>,
    /// Which handler runs a pod.
    pub(crate) runtime_classes: BTreeMap<String, Arc<RuntimeClass>>,
    /// What kubelet has to know of drivers.
    pub(crate) drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// What drivers are given besides.
    pub(crate) secrets: BTreeMap<Name, Arc<Secret>>,
    /// Each as it was written.
    pub(crate) documents: BTreeMap<(Kind, Name), Arc<Value>>,
}

impl Objects {
    /// As if nobody had asked for `deferFSMount`.
    pub(crate) fn ignore_deferral(&mut self) {
        for pod in self.pods.values_mut() {
            if !pod.deferred.is_empty() {
                Arc::make_mut(pod).deferred.clear();
            }
        }
    }

    /// Takes an object in; one that is there by its name is replaced.
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
            Object::Pod(it) => drop(self.pods.insert(name, Arc::from(it))),
            Object::Claim(it) => drop(self.claims.insert(name, Arc::from(it))),
            Object::Volume(it) => drop(self.volumes.insert(name.name, Arc::from(it))),
            Object::StorageClass(it) => drop(self.storage_classes.insert(name.name, Arc::new(it))),
            Object::RuntimeClass(it) => drop(self.runtime_classes.insert(name.name, Arc::new(it))),
            Object::Driver(it) => drop(self.drivers.insert(name.name, Arc::new(it))),
            Object::Secret(it) => drop(self.secrets.insert(name, Arc::new(it))),
        }
    }
}

#[cfg(test)]
mod tests;

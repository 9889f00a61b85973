//! The tables of claims, persistent volumes and the node's volumes.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde::Serialize;
use serde_json::Value;

use super::cells::{
    DEFAULT_VOLUME_MODE, NONE, UNSET, access_modes, capacity, name, storage_class, text_or,
};
use super::{Column, KindTable, Row, typed};
use crate::cli::age;
use crate::volumes::view::{MountView, VolumeView};

/// kubectl's columns.
pub(super) const CLAIMS: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("STATUS", Column::Always),
        ("VOLUME", Column::Always),
        ("CAPACITY", Column::Always),
        ("ACCESS MODES", Column::Always),
        ("STORAGECLASS", Column::Always),
        ("VOLUMEATTRIBUTESCLASS", Column::Always),
        ("AGE", Column::Always),
        ("VOLUMEMODE", Column::Wide),
    ],
    rows: claims,
};

fn claims(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let claim: PersistentVolumeClaim = typed(document)?;
    let metadata = &claim.metadata;
    let spec = claim.spec.unwrap_or_default();
    let status = claim.status.unwrap_or_default();
    let phase = status.phase.as_deref();
    let phase = metadata
        .deletion_timestamp
        .as_ref()
        .map_or(phase, |_| Some("Terminating"));
    let volume = text_or(spec.volume_name.as_deref(), "");
    // The capacity of the volume, not the requested size.
    let (size, modes) = if volume.is_empty() {
        (String::new(), String::new())
    } else {
        let modes = access_modes(status.access_modes.as_deref());
        (capacity(status.capacity.as_ref()), modes)
    };
    Ok(vec![vec![
        name(metadata),
        text_or(phase, ""),
        volume,
        size,
        modes,
        storage_class(metadata, spec.storage_class_name.as_deref()),
        text_or(spec.volume_attributes_class_name.as_deref(), UNSET),
        age::since(now, metadata.creation_timestamp.as_ref()),
        text_or(spec.volume_mode.as_deref(), DEFAULT_VOLUME_MODE),
    ]])
}

/// kubectl's columns.
pub(super) const PERSISTENT_VOLUMES: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("CAPACITY", Column::Always),
        ("ACCESS MODES", Column::Always),
        ("RECLAIM POLICY", Column::Always),
        ("STATUS", Column::Always),
        ("CLAIM", Column::Always),
        ("STORAGECLASS", Column::Always),
        ("VOLUMEATTRIBUTESCLASS", Column::Always),
        ("REASON", Column::Always),
        ("AGE", Column::Always),
        ("VOLUMEMODE", Column::Wide),
    ],
    rows: persistent_volumes,
};

fn persistent_volumes(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let volume: PersistentVolume = typed(document)?;
    let metadata = &volume.metadata;
    let spec = volume.spec.unwrap_or_default();
    let status = volume.status.unwrap_or_default();
    let phase = status.phase.as_deref();
    let phase = metadata
        .deletion_timestamp
        .as_ref()
        .map_or(phase, |_| Some("Terminating"));
    let claim = spec.claim_ref.as_ref().map(|claim| {
        let part = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}/{}", part(&claim.namespace), part(&claim.name))
    });
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    Ok(vec![vec![
        name(metadata),
        capacity(spec.capacity.as_ref()),
        access_modes(spec.access_modes.as_deref()),
        // The default for a volume from a manifest.
        text_or(policy, "Retain"),
        text_or(phase, ""),
        claim.unwrap_or_default(),
        storage_class(metadata, spec.storage_class_name.as_deref()),
        text_or(spec.volume_attributes_class_name.as_deref(), UNSET),
        text_or(status.reason.as_deref(), ""),
        age::since(now, metadata.creation_timestamp.as_ref()),
        text_or(spec.volume_mode.as_deref(), DEFAULT_VOLUME_MODE),
    ]])
}

/// The columns of `Volume`, crustlet's own kind. Each mount has a row. A volume without mounts has one row.
pub(super) const NODE_VOLUMES: KindTable = KindTable {
    columns: &[
        ("NAME", Column::Always),
        ("DRIVER", Column::Always),
        ("STAGED", Column::Always),
        ("POD", Column::Always),
        ("MOUNTED-BY", Column::Always),
        ("STATE", Column::Always),
        ("OPERATION", Column::Always),
        ("HANDLE", Column::Wide),
        ("TARGET PATH", Column::Wide),
        ("MESSAGE", Column::Wide),
    ],
    rows: node_volumes,
};

fn node_volumes(document: &Value, _: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let volume: VolumeView = typed(document)?;
    if volume.status.mounts.is_empty() {
        return Ok(vec![node_volume(&volume, None)]);
    }
    let mounts = volume.status.mounts.iter();
    Ok(mounts
        .map(|mount| node_volume(&volume, Some(mount)))
        .collect())
}

fn node_volume(volume: &VolumeView, mount: Option<&MountView>) -> Row {
    let status = &volume.status;
    let pod = mount.map(|mount| mount.pod.as_deref().unwrap_or(&mount.pod_uid));
    let mounter = mount.and_then(|mount| mount.mounter).map(serialized);
    let state = mount.map(|mount| serialized(mount.state));
    let mount_message = mount.and_then(|mount| mount.message.as_deref());
    let message = mount_message.or(status.message.as_deref());
    vec![
        volume.metadata.name.clone(),
        volume.spec.driver.clone(),
        serialized(status.staged),
        text_or(pod, NONE),
        text_or(mounter.as_deref(), NONE),
        text_or(state.as_deref(), NONE),
        text_or(status.operation.as_deref(), NONE),
        volume.spec.volume_handle.clone(),
        text_or(mount.map(|mount| mount.target_path.as_str()), NONE),
        text_or(message, NONE),
    ]
}

/// Returns the string that a value is serialized as.
fn serialized(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

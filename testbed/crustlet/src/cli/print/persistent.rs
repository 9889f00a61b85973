//! Persistent volumes' table.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::Value;

use super::cells::{MODE, UNSET, access_modes, capacity, name, or, storage_class};
use super::{Kinds, Row, Shown, typed};
use crate::cli::age;

/// kubectl's columns.
pub(super) const VOLUMES: Kinds = Kinds {
    columns: &[
        ("NAME", Shown::Always),
        ("CAPACITY", Shown::Always),
        ("ACCESS MODES", Shown::Always),
        ("RECLAIM POLICY", Shown::Always),
        ("STATUS", Shown::Always),
        ("CLAIM", Shown::Always),
        ("STORAGECLASS", Shown::Always),
        ("VOLUMEATTRIBUTESCLASS", Shown::Always),
        ("REASON", Shown::Always),
        ("AGE", Shown::Always),
        ("VOLUMEMODE", Shown::Wide),
    ],
    rows,
};

fn rows(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let volume: PersistentVolume = typed(document)?;
    let metadata = &volume.metadata;
    let spec = volume.spec.unwrap_or_default();
    let status = volume.status.unwrap_or_default();
    let phase = status.phase.as_deref();
    let phase = metadata
        .deletion_timestamp
        .as_ref()
        .map_or(phase, |_| Some("Terminating"));
    let claim = spec.claim_ref.as_ref().map(|it| {
        let part = |it: &Option<String>| it.clone().unwrap_or_default();
        format!("{}/{}", part(&it.namespace), part(&it.name))
    });
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    Ok(vec![vec![
        name(metadata),
        capacity(spec.capacity.as_ref()),
        access_modes(spec.access_modes.as_deref()),
        // What it is where a manifest doesn't say.
        or(policy, "Retain"),
        or(phase, ""),
        claim.unwrap_or_default(),
        storage_class(metadata, spec.storage_class_name.as_deref()),
        or(spec.volume_attributes_class_name.as_deref(), UNSET),
        or(status.reason.as_deref(), ""),
        age::since(now, metadata.creation_timestamp.as_ref()),
        or(spec.volume_mode.as_deref(), MODE),
    ]])
}

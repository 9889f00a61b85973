//! Claims' table.

use std::time::SystemTime;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::Value;

use super::cells::{MODE, UNSET, access_modes, capacity, name, or, storage_class};
use super::{Kinds, Row, Shown, typed};
use crate::cli::age;

/// kubectl's columns.
pub(super) const CLAIMS: Kinds = Kinds {
    columns: &[
        ("NAME", Shown::Always),
        ("STATUS", Shown::Always),
        ("VOLUME", Shown::Always),
        ("CAPACITY", Shown::Always),
        ("ACCESS MODES", Shown::Always),
        ("STORAGECLASS", Shown::Always),
        ("VOLUMEATTRIBUTESCLASS", Shown::Always),
        ("AGE", Shown::Always),
        ("VOLUMEMODE", Shown::Wide),
    ],
    rows,
};

fn rows(document: &Value, now: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let claim: PersistentVolumeClaim = typed(document)?;
    let metadata = &claim.metadata;
    let spec = claim.spec.unwrap_or_default();
    let status = claim.status.unwrap_or_default();
    let phase = status.phase.as_deref();
    let phase = metadata
        .deletion_timestamp
        .as_ref()
        .map_or(phase, |_| Some("Terminating"));
    let volume = or(spec.volume_name.as_deref(), "");
    // What there is, and not what is asked for.
    let (size, modes) = if volume.is_empty() {
        (String::new(), String::new())
    } else {
        let modes = access_modes(status.access_modes.as_deref());
        (capacity(status.capacity.as_ref()), modes)
    };
    Ok(vec![vec![
        name(metadata),
        or(phase, ""),
        volume,
        size,
        modes,
        storage_class(metadata, spec.storage_class_name.as_deref()),
        or(spec.volume_attributes_class_name.as_deref(), UNSET),
        age::since(now, metadata.creation_timestamp.as_ref()),
        or(spec.volume_mode.as_deref(), MODE),
    ]])
}

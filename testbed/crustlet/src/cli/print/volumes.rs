//! The table of a node's volumes: a row a mount, and one where there is none.

use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;

use super::cells::{NONE, or};
use super::{Kinds, Row, Shown, typed};
use crate::volumes::shown::{ShownMount, ShownVolume};

/// Ours: kubectl knows no such kind.
pub(super) const VOLUMES: Kinds = Kinds {
    columns: &[
        ("NAME", Shown::Always),
        ("DRIVER", Shown::Always),
        ("STAGED", Shown::Always),
        ("POD", Shown::Always),
        ("MOUNTED-BY", Shown::Always),
        ("STATE", Shown::Always),
        ("OPERATION", Shown::Always),
        ("HANDLE", Shown::Wide),
        ("TARGET PATH", Shown::Wide),
        ("MESSAGE", Shown::Wide),
    ],
    rows,
};

fn rows(document: &Value, _: SystemTime) -> Result<Vec<Row>, serde_json::Error> {
    let volume: ShownVolume = typed(document)?;
    if volume.status.mounts.is_empty() {
        return Ok(vec![row(&volume, None)]);
    }
    let mounts = volume.status.mounts.iter();
    Ok(mounts.map(|mount| row(&volume, Some(mount))).collect())
}

fn row(volume: &ShownVolume, mount: Option<&ShownMount>) -> Row {
    let status = &volume.status;
    let pod = mount.map(|it| it.pod.as_deref().unwrap_or(&it.pod_uid));
    let mounter = mount.and_then(|it| it.mounter).map(word);
    let state = mount.map(|it| word(it.state));
    let of_mount = mount.and_then(|it| it.message.as_deref());
    let message = of_mount.or(status.message.as_deref());
    vec![
        volume.metadata.name.clone(),
        volume.spec.driver.clone(),
        word(status.staged),
        or(pod, NONE),
        or(mounter.as_deref(), NONE),
        or(state.as_deref(), NONE),
        or(status.operation.as_deref(), NONE),
        volume.spec.volume_handle.clone(),
        or(mount.map(|it| it.target_path.as_str()), NONE),
        or(message, NONE),
    ]
}

/// As it stands in the document.
fn word(value: impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

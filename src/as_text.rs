//! Serialises paths as `crust explain --json` prints them: as text, with what isn't UTF-8 replaced.

use std::path::Path;

use crust_state::TargetPath;
use serde::ser::SerializeStruct as _;
use serde::{Serialize as _, Serializer};

/// Serialises a path.
pub(crate) fn path<S: Serializer>(
    path: &impl AsRef<Path>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.as_ref().display())
}

/// Serialises a path or null.
#[expect(clippy::ref_option, reason = "serde passes the field's reference")]
pub(crate) fn optional_path<S: Serializer>(
    path: &Option<impl AsRef<Path>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let path = path.as_ref().map(|path| path.as_ref().to_string_lossy());
    path.serialize(serializer)
}

/// Serialises a volume by its target path, as the two keys `volume` and `target_path`.
pub(crate) fn volume<S: Serializer>(target: &TargetPath, serializer: S) -> Result<S::Ok, S::Error> {
    let mut keys = serializer.serialize_struct("Volume", 2)?;
    keys.serialize_field("volume", &target.volume_name())?;
    keys.serialize_field("target_path", &target.as_path().to_string_lossy())?;
    keys.end()
}

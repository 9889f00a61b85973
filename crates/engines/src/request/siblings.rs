//! What CRI-O and podman read beside the file that is edited.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Engine;
use crate::error::HandlerError;
use crate::node::Node;

/// Where an engine's files are.
struct Layout {
    files: &'static [&'static str],
    drop_ins: &'static str,
    /// What a drop-in's name ends with.
    suffix: &'static str,
}

const CRIO: Layout = Layout {
    files: &["/etc/crio/crio.conf"],
    drop_ins: "/etc/crio/crio.conf.d",
    suffix: "",
};

const PODMAN: Layout = Layout {
    files: &[
        "/usr/share/containers/containers.conf",
        "/etc/containers/containers.conf",
    ],
    drop_ins: "/etc/containers/containers.conf.d",
    suffix: ".conf",
};

/// The files of the node that the engine reads beside one of its usual ones; of another file nobody
/// knows what is read beside it.
pub(super) fn of(node: &Node, engine: Engine, file: &Path) -> Result<Vec<PathBuf>, HandlerError> {
    let layout = match engine {
        Engine::Crio => CRIO,
        Engine::Podman => PODMAN,
        Engine::Containerd | Engine::Docker => return Ok(Vec::new()),
    };
    let drop_ins = Path::new(layout.drop_ins);
    let is_usual = layout.files.iter().any(|usual| Path::new(usual) == file);
    if !is_usual && file.parent() != Some(drop_ins) {
        return Ok(Vec::new());
    }
    let mut names = node.names(drop_ins)?;
    names.retain(|name| name.ends_with(layout.suffix.as_bytes()));
    names.sort();
    let below = names
        .iter()
        .map(|name| drop_ins.join(OsStr::from_bytes(name)));
    let files = layout.files.iter().map(PathBuf::from).chain(below);
    Ok(files
        .filter(|path| path != file && node.has_file(path))
        .collect())
}

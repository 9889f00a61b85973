//! The programs on the node.

use std::path::{Path, PathBuf};

use crust_state::foreign::{ForeignFile, put};

use crate::error::HandlerError;
use crate::node::Node;

/// What runcrust needs beside it, and itself last: it may need the new hook.
const PROGRAMS: [&str; 2] = ["crust-mount-hook", "runcrust"];

/// A program that was brought to the node.
#[derive(Debug)]
pub struct Copied {
    /// Where it is there.
    pub path: PathBuf,
    /// The same bytes were there before.
    pub is_same: bool,
}

/// Brings this program and the hook beside it into a directory of the node, each whole and in the
/// place of another. Pods that run keep theirs. `is_only_shown`: nothing is written.
pub fn copy_programs(
    node: &Node,
    directory: &Path,
    is_only_shown: bool,
) -> Result<Vec<Copied>, HandlerError> {
    let own = Path::new("/proc/self/exe");
    let own = own
        .canonicalize()
        .map_err(|error| HandlerError::call("readlink", own, error))?;
    let sources = [own.with_file_name(PROGRAMS[0]), own];
    let mut copied = Vec::new();
    for (source, name) in sources.iter().zip(PROGRAMS) {
        let bytes =
            std::fs::read(source).map_err(|error| HandlerError::call("open", source, error))?;
        let path = directory.join(name);
        let place = node.find(&path);
        let there = ForeignFile::read(&place)?;
        let is_same = there.is_some_and(|there| there.bytes() == bytes) && node.has_program(&path);
        if !is_same && !is_only_shown {
            node.create_directory(&place)?;
            put(&place, &bytes, 0o755)?;
        }
        copied.push(Copied { path, is_same });
    }
    Ok(copied)
}

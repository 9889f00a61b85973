//! The programs on the node.

use std::path::{Path, PathBuf};

use crust_state::foreign::{ForeignFile, put, sweep};

use crate::error::HandlerError;
use crate::node::Node;

/// What runcrust needs beside it, and itself last: it may need the new hook.
const PROGRAMS: [&str; 2] = ["crust-mount-hook", "runcrust"];

/// A program that is to be on the node.
#[derive(Debug)]
pub struct Copy {
    /// Where it is there.
    pub path: PathBuf,
    /// The same bytes are there.
    pub is_same: bool,
    place: PathBuf,
    bytes: Vec<u8>,
}

/// What it takes to bring this program and the hook beside it into a directory of the node.
pub fn plan_copies(node: &Node, directory: &Path) -> Result<Vec<Copy>, HandlerError> {
    if !directory.is_absolute() {
        return Err(HandlerError::CopyTo(directory.to_owned()));
    }
    node.check_directory(directory)?;
    let own = Path::new("/proc/self/exe");
    let own = own
        .canonicalize()
        .map_err(|error| HandlerError::call("readlink", own, error))?;
    let sources = [own.with_file_name(PROGRAMS[0]), own];
    let planned = sources.iter().zip(PROGRAMS);
    let planned = planned.map(|(source, name)| plan(node, source, &directory.join(name)));
    planned.collect()
}

fn plan(node: &Node, source: &Path, path: &Path) -> Result<Copy, HandlerError> {
    let bytes = std::fs::read(source).map_err(|error| HandlerError::call("open", source, error))?;
    // A link of that name may lead to a package's file: it is replaced, not what it leads to.
    let place = node.find(path.parent().unwrap_or(path));
    let place = place.join(path.file_name().unwrap_or_default());
    let is_same = match place.symlink_metadata() {
        Ok(there) if there.is_file() => {
            let there = ForeignFile::read(&place)?;
            there.is_some_and(|there| there.bytes() == bytes) && node.check_program(path).is_ok()
        }
        Ok(there) if there.is_dir() => return Err(HandlerError::ProgramPlace(path.to_owned())),
        _ => false,
    };
    Ok(Copy {
        path: path.to_owned(),
        is_same,
        place,
        bytes,
    })
}

impl Copy {
    /// Puts it there, whole and in the place of another. Pods that run keep theirs.
    pub fn apply(&self, node: &Node) -> Result<(), HandlerError> {
        if self.is_same {
            return Ok(());
        }
        node.create_directory(&self.place)?;
        sweep(&self.place)?;
        Ok(put(&self.place, &self.bytes, 0o755)?)
    }
}

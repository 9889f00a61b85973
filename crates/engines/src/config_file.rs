//! Configuration files as they are read from a node.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_state::foreign::ForeignFile;

use crate::engine::MARK;
use crate::error::Result;
use crate::node_root::NodeRoot;

/// A configuration file.
#[derive(Debug)]
pub struct ConfigFile {
    /// Its path, as the engine sees it.
    pub(crate) path: PathBuf,
    /// Its text. `None` if it doesn't exist.
    pub(crate) text: Option<String>,
    /// Whether every version of the engine reads it.
    pub(crate) is_sure: bool,
    /// Whether it belongs to a package, whose next version would bring back what was removed.
    pub(crate) is_packaged: bool,
    /// The file that was read, which the new text replaces.
    pub(crate) source: Option<ForeignFile>,
}

impl ConfigFile {
    pub(crate) fn new(path: impl Into<PathBuf>, text: Option<String>) -> Self {
        Self {
            path: path.into(),
            text,
            is_sure: true,
            is_packaged: false,
            source: None,
        }
    }

    /// Returns its text, which is empty if it doesn't exist.
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns whether `install` made it, or is about to.
    pub(crate) fn is_ours(&self) -> bool {
        self.text.as_ref().is_none_or(|text| text.starts_with(MARK))
    }

    /// Returns the comment above a table that `install` adds. In a file of its own none is needed.
    pub(crate) fn mark(&self) -> &'static str {
        if self.is_ours() { "" } else { MARK }
    }

    /// Returns its text after a removal. `None` if nothing is left in a file that `install` made.
    pub(crate) fn remaining(&self, left: String) -> Option<String> {
        let is_empty = left.trim().is_empty() || left.trim() == MARK.trim();
        (!self.is_ours() || !is_empty).then_some(left)
    }
}

/// Where an engine finds files that it reads one after the other.
#[derive(Debug)]
pub(crate) struct DropIns {
    /// The main files. Those below `/usr` belong to packages.
    pub(crate) files: &'static [&'static str],
    /// The directory of the drop-ins, which are read in the order of their names.
    pub(crate) directory: &'static str,
    /// What a drop-in's name ends with.
    pub(crate) suffix: &'static str,
}

impl DropIns {
    /// Reads `first`, and if it is one of these files, the others.
    pub(crate) fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<ConfigFile>> {
        let mut found = vec![node.read(first)?];
        let directory = Path::new(self.directory);
        let main = self.files.iter().map(Path::new);
        if !main.clone().any(|file| file == first) && first.parent() != Some(directory) {
            return Ok(found);
        }
        let mut names = node.names(directory)?;
        names.retain(|name| name.ends_with(self.suffix.as_bytes()));
        names.sort();
        let names = names.iter().map(|name| OsStr::from_bytes(name));
        let all = main.map(Path::to_owned);
        for path in all.chain(names.map(|name| directory.join(name))) {
            if path != first && node.has_file(&path) {
                let is_packaged = path.starts_with("/usr");
                let file = node.read(&path)?;
                found.push(ConfigFile {
                    is_packaged,
                    ..file
                });
            }
        }
        Ok(found)
    }
}

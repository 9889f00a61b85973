//! Configuration files as they are read from a node.

use std::path::PathBuf;

use crust_state::foreign::ForeignFile;

/// The first line of a file that `install` made, and the comment above a table that it added.
pub(crate) const MARK: &str = "# Added by runcrust install; runcrust uninstall removes it.\n";

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

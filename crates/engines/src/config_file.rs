//! The configuration files of an engine, as they were read from a node.

use std::path::PathBuf;

use crust_state::foreign::ForeignFile;

/// The first line of a file that `install` created, and the comment above a table that it added.
pub(crate) const MARK: &str = "# Added by runcrust install; runcrust uninstall removes it.\n";

/// A configuration file of an engine.
#[derive(Debug)]
pub struct EngineConfigFile {
    /// The path on the node.
    pub(crate) path: PathBuf,
    /// The text; `None` if the file doesn't exist.
    pub(crate) text: Option<String>,
    /// Whether every version of the engine reads the file.
    pub(crate) is_always_read: bool,
    /// Whether the file belongs to a package. The package's next version would restore what was removed.
    pub(crate) is_packaged: bool,
    /// The file that was read. The new text replaces it.
    pub(crate) source: Option<ForeignFile>,
}

impl EngineConfigFile {
    pub(crate) fn new(path: impl Into<PathBuf>, text: Option<String>) -> Self {
        Self {
            path: path.into(),
            text,
            is_always_read: true,
            is_packaged: false,
            source: None,
        }
    }

    /// Returns the text, which is empty if the file doesn't exist.
    pub(crate) fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// Returns whether `install` created the file, or would create it because it doesn't exist.
    pub(crate) fn is_from_install(&self) -> bool {
        self.text.as_ref().is_none_or(|text| text.starts_with(MARK))
    }

    /// Returns the comment above a table that `install` adds. It is empty in a file that `install` creates.
    pub(crate) fn mark(&self) -> &'static str {
        if self.is_from_install() { "" } else { MARK }
    }

    /// Returns the text that is left after a removal; `None` if `install` created the file and nothing is left in it.
    pub(crate) fn remaining(&self, left: String) -> Option<String> {
        let is_empty = left.trim().is_empty() || left.trim() == MARK.trim();
        (!self.is_from_install() || !is_empty).then_some(left)
    }
}

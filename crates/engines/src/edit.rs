//! A file's old and new text.

use std::path::{Path, PathBuf};

/// The first line of a file that is all ours, and what stands above a table that is.
/// Begins as [`crate::lines::OURS`] does.
pub(crate) const MARK: &str = "# Added by runcrust install; runcrust uninstall removes it.\n";

/// A file as it is.
#[derive(Debug)]
pub(crate) struct Source {
    /// Where its daemon finds it.
    pub(crate) path: PathBuf,
    /// `None` where there is none.
    pub(crate) text: Option<String>,
    /// Whether every version of its daemon reads it.
    pub(crate) is_sure: bool,
}

impl Source {
    pub(crate) const fn new(path: PathBuf, text: Option<String>) -> Self {
        Self {
            path,
            text,
            is_sure: true,
        }
    }
}

/// A file as it is and as it is to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) path: PathBuf,
    pub(crate) before: Option<String>,
    /// `None` where it is to go.
    pub(crate) after: Option<String>,
}

impl Edit {
    pub(crate) fn new(path: &Path, before: Option<&str>, after: String) -> Self {
        Self::maybe(path, before, Some(after))
    }

    pub(crate) fn maybe(path: &Path, before: Option<&str>, after: Option<String>) -> Self {
        Self {
            path: path.to_owned(),
            before: before.map(str::to_owned),
            after,
        }
    }
}

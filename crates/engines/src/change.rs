//! What becomes of a node's files.

use std::path::{Path, PathBuf};

use crust_state::foreign::Staged;

use crate::edit::Edit;
use crate::error::HandlerError;
use crate::lines;
use crate::node::{Kept, Node};

/// What is to be done to a node's files.
#[derive(Debug)]
pub struct Plan {
    /// The files; those that stay as they are, too.
    pub changes: Vec<Change>,
    /// What an operator should know besides.
    pub notes: Vec<String>,
    /// The program that the handler runs, or ran; `None` where there was no handler to remove.
    pub program: Option<PathBuf>,
}

impl Plan {
    /// Writes the files: each whole, with the mode, owner and attributes that it has, and all or none.
    /// One that has changed since it was read stays.
    pub fn apply(&self, node: &Node) -> Result<(), HandlerError> {
        let changes = self.changes.iter().filter(|change| !change.is_nothing());
        let staged = changes.map(|change| change.stage(node));
        // Each lacks its last step before the first of these is done.
        let staged: Vec<Option<Staged<'_>>> = staged.collect::<Result<_, _>>()?;
        for change in staged.into_iter().flatten() {
            change.commit_synced()?;
        }
        Ok(())
    }
}

/// One file of a node, and what becomes of it.
#[derive(Debug)]
pub struct Change {
    edit: Edit,
    kept: Option<Kept>,
}

impl Change {
    pub(crate) fn new(edit: Edit, kept: Option<Kept>) -> Self {
        Self { edit, kept }
    }

    /// Where its daemon finds it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.edit.path
    }

    /// Whether it stays as it is.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.edit.before == self.edit.after
    }

    /// As `diff -u` shows it.
    #[must_use]
    pub fn diff(&self) -> String {
        let Edit {
            path,
            before,
            after,
        } = &self.edit;
        let path = path.display().to_string();
        lines::unified(&path, before.as_deref(), after.as_deref())
    }

    fn stage(&self, node: &Node) -> Result<Option<Staged<'_>>, HandlerError> {
        let after = self.edit.after.as_deref();
        match (&self.kept, after) {
            (Some(kept), after) => kept.stage(after).map(Some),
            (None, Some(text)) => node.stage_new(&self.edit.path, text).map(Some),
            (None, None) => Ok(None),
        }
    }
}

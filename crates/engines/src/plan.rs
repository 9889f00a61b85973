//! Shows and writes the changes to a node's files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crust_state::foreign::{ForeignFile, StagedChange};
use similar::algorithms::{Capture, Compact, Replace, myers};
use similar::group_diff_ops;
use similar::udiff::UnifiedHunkHeader;

use crate::config_file::EngineConfigFile;
use crate::error::Result;
use crate::node_root::NodeRoot;

/// The changes to a node's files.
#[derive(Debug)]
pub struct ChangePlan {
    /// The files, including those that don't change.
    pub changes: Vec<FileChange>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// The programs that the handler runs or ran; empty if there was no handler to remove.
    pub programs: Vec<PathBuf>,
}

/// A file of a node, and its new text.
#[derive(Debug)]
pub struct FileChange {
    path: PathBuf,
    before: Option<String>,
    /// `None` if the file is removed.
    after: Option<String>,
    source: Option<ForeignFile>,
}

impl ChangePlan {
    pub(crate) fn new(
        mut files: Vec<EngineConfigFile>,
        edits: Vec<(PathBuf, Option<String>)>,
        notes: Vec<String>,
        programs: Vec<PathBuf>,
    ) -> Self {
        let changes = edits.into_iter().map(|(path, after)| {
            let read = files.iter_mut().find(|file| file.path == path);
            let (before, source) =
                read.map_or((None, None), |file| (file.text.take(), file.source.take()));
            FileChange {
                path,
                before,
                after,
                source,
            }
        });
        Self {
            changes: changes.collect(),
            notes,
            programs,
        }
    }

    /// Writes the files atomically and keeps their mode, owner and attributes. All files are prepared before the first
    /// one is replaced. Fails if a file has changed since it was read.
    pub fn apply(&self, node: &NodeRoot) -> Result<()> {
        let changes = self.changes.iter().filter(|change| !change.is_unchanged());
        let staged = changes.map(|change| change.stage(node));
        // Every file is complete under a temporary name before the first one is renamed.
        let staged: Vec<Option<StagedChange<'_>>> = staged.collect::<Result<_, _>>()?;
        for change in staged.into_iter().flatten() {
            change.commit_synced()?;
        }
        Ok(())
    }
}

impl FileChange {
    /// Returns the file's path on the node.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the text doesn't change.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.before == self.after
    }

    /// Returns the change in the format of `diff -u`.
    #[must_use]
    pub fn diff(&self) -> String {
        let path = self.path.display().to_string();
        unified(&path, self.before.as_deref(), self.after.as_deref())
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn into_edit(self) -> (PathBuf, Option<String>) {
        (self.path, self.after)
    }

    fn stage(&self, node: &NodeRoot) -> Result<Option<StagedChange<'_>>> {
        Ok(match (&self.source, &self.after) {
            (None, None) => None,
            (None, Some(text)) => Some(node.stage_new(&self.path, text)?),
            (Some(source), after) => {
                source.remove_leftovers()?;
                Some(match after {
                    Some(text) => source.stage(text.as_bytes())?,
                    None => source.stage_removal()?,
                })
            }
        })
    }
}

/// Returns the difference between two texts of a file in the format of `diff -u`. `None` is shown as `/dev/null`.
#[must_use]
pub fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let (old, new) = (before.unwrap_or_default(), after.unwrap_or_default());
    if old == new {
        return String::new();
    }
    let name = |text: Option<&str>| text.map_or("/dev/null", |_| path);
    let mut text = format!("--- {}\n+++ {}\n", name(before), name(after));
    let (old, new): (Vec<&str>, Vec<&str>) = (
        old.split_inclusive('\n').collect(),
        new.split_inclusive('\n').collect(),
    );
    // `TextDiff` would link all algorithms of the library, and this program is started for every container.
    let mut found = Compact::new(Replace::new(Capture::new()), &*old, &*new);
    let Ok(()) = myers::diff(&mut found, &*old, 0..old.len(), &*new, 0..new.len());
    for hunk in group_diff_ops(found.into_inner().into_inner().into_ops(), 3) {
        let _ = writeln!(text, "{}", UnifiedHunkHeader::new(&hunk));
        for (tag, lines) in hunk.iter().flat_map(|op| op.iter_slices(&*old, &*new)) {
            for line in lines {
                let end = if line.ends_with('\n') {
                    ""
                } else {
                    "\n\\ No newline at end of file\n"
                };
                let _ = write!(text, "{tag}{line}{end}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_diff_is_the_same_as_that_of_the_library() {
        let texts = [
            "",
            "a\n",
            "a",
            "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n",
            "a\nb\nC\nd\ne\nf\ng\nh\ni\nj\n",
            "x\na\nb\nc\nd\ne\nf\ng\nh\nj\nk",
        ];
        for (old, new) in texts.iter().flat_map(|old| texts.map(|new| (*old, new))) {
            let diff = similar::TextDiff::from_lines(old, new);
            let shown = diff.unified_diff().header("/etc/x", "/etc/x").to_string();
            assert_eq!(unified("/etc/x", Some(old), Some(new)), shown);
        }
        let new = unified("/etc/x", None, Some("a\n"));
        assert_eq!(new, "--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+a\n");
    }
}

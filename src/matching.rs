//! Which of a config's mounts are of deferred volumes (KEP-2857, "Overview of Interactions").

mod subpath;

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crust_mount::mountinfo::MountInfoError;
use crust_mount::place::Place;
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};

/// What matching asks of the node.
pub(crate) trait Node {
    /// The volume that is staged at a path, by the target path it was staged with.
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError>;
    /// The lengths of those paths, of this one and its parents, that something may be staged at; `None`
    /// where each is to be asked about.
    fn staged_on_the_way(&self, _path: &TargetPath) -> Option<Vec<usize>> {
        None
    }
    /// The path with its symbolic links resolved, where that is another one.
    fn resolved(&self, path: &Path) -> Option<TargetPath>;
    /// The volumes that are staged in a pod's directory of CSI volumes, which is listed.
    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError>;
    /// Where in their file systems these paths lead to; `None` for what isn't there or not known.
    fn places(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError>;
    /// Whether a volume's directory is just that: no mount, and no files below it. One that isn't
    /// there is.
    fn is_bare_directory(&self, directory: &Path) -> bool;
    /// Whether there is something at a path.
    fn exists(&self, path: &Path) -> bool;
    /// Where a path leads in the root file system of a container that is yet to be made.
    fn within(&self, rootfs: &Path, path: &Path) -> PathBuf;
}

/// Why it isn't known what is staged for a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    #[error("getdents64 {}: {source}", directory.display())]
    Listing {
        directory: PathBuf,
        source: std::io::Error,
    },
    #[error("volume {volume}: {source}")]
    Staged { volume: String, source: EntryError },
}

/// A mount of a deferred volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// The volume.
    pub(crate) volume: TargetPath,
    /// What the mount shows of it; empty for all.
    pub(crate) subpath: PathBuf,
    /// How the source led to it.
    pub(crate) by: By,
    /// The source with its links resolved, where that was what led to it.
    pub(crate) resolved: Option<TargetPath>,
}

/// How a source leads to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum By {
    /// It is where the volume is staged.
    Exact,
    /// A parent of it is.
    Parent(TargetPath),
    /// It is a stock kubelet's bind of a subPath.
    SubpathBind,
}

/// Why a mount can neither be matched nor passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchError {
    /// Once a directory matches, nothing falls back: the workload would write to the node's disk.
    #[error("volume {volume}: {source}")]
    Entry { volume: String, source: EntryError },
    #[error("volume {volume}: {path} {why}")]
    Subpath {
        volume: String,
        path: String,
        why: subpath::Why,
    },
    #[error("volume {volume}: {source}")]
    Mounts {
        volume: String,
        source: MountInfoError,
    },
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error(
        "volume {volume}: nothing is staged for {directory}, which is neither mounted nor holds \
         files: data written there would be lost; hint: stage the volume again, or set \
         unstaged = \"pass\" in runcrust's configuration"
    )]
    Unstaged { volume: String, directory: String },
}

impl MatchError {
    fn unstaged(volume: &str, directory: &Path) -> Self {
        Self::Unstaged {
            volume: volume.to_owned(),
            directory: directory.display().to_string(),
        }
    }
}

/// Matches one mount by its source. The exact source may match anywhere; a parent of it only at
/// or below a CSI volume's own directory, or below one of `match_roots`.
pub(crate) fn match_source(
    source: &Path,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let Some(source) = short(source).filter(|source| source.is_absolute()) else {
        return Ok(None);
    };
    let given = TargetPath::new(&*source).ok();
    // containerd and CRI-O resolve sources, others don't: a link must not lead past the match.
    let resolved = node.resolved(&source);
    let spellings = [
        given.as_ref(),
        resolved
            .as_ref()
            .filter(|path| given.as_ref() != Some(path)),
    ];
    let by_links = |found: Match, spelling: &TargetPath| Match {
        resolved: (given.as_ref() != Some(spelling)).then(|| spelling.clone()),
        ..found
    };
    for spelling in spellings.into_iter().flatten() {
        if let Some(found) = match_path(spelling, config, node)? {
            return Ok(Some(by_links(found, spelling)));
        }
    }
    for spelling in spellings.into_iter().flatten() {
        if let Some(found) = subpath::find(spelling, node)? {
            return Ok(Some(by_links(found, spelling)));
        }
    }
    if config.unstaged == Unstaged::Refuse {
        for spelling in spellings.into_iter().flatten() {
            refuse_unstaged(spelling, node)?;
            subpath::refuse_unstaged(spelling, node)?;
        }
    }
    Ok(None)
}

/// The longest path that the kernel takes (`PATH_MAX`, with its NUL).
const LONGEST: usize = 4095;

/// A source that somebody can mount: a longer one only runc can, which takes the dots out of a
/// relative one.
fn short(source: &Path) -> Option<Cow<'_, Path>> {
    let is_short = |path: &Path| path.as_os_str().len() <= LONGEST;
    if is_short(source) {
        return Some(Cow::Borrowed(source));
    }
    let mut clean = PathBuf::new();
    for component in source.components() {
        match component {
            Component::ParentDir => _ = clean.pop(),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    is_short(&clean).then_some(Cow::Owned(clean))
}

fn match_path(
    path: &TargetPath,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let floor = path
        .csi_volume()
        .map(|volume| volume.directory().to_owned());
    let may_be_a_volume = |parent: &Path| {
        floor
            .as_ref()
            .is_some_and(|floor| parent.starts_with(floor))
            || config
                .match_roots
                .iter()
                .any(|root| parent.starts_with(root) && parent != root)
    };
    let known = node.staged_on_the_way(path);
    for (candidate, below) in path.ancestors() {
        if candidate != *path && !may_be_a_volume(candidate.as_path()) {
            break;
        }
        if known
            .as_ref()
            .is_some_and(|known| !known.contains(&candidate.length()))
        {
            continue;
        }
        let staged = node
            .staged(&candidate)
            .map_err(|source| MatchError::Entry {
                volume: candidate.volume_name(),
                source,
            })?;
        if let Some(volume) = staged {
            let is_parent = candidate != *path;
            return Ok(Some(Match {
                volume,
                subpath: below.to_owned(),
                by: if is_parent {
                    By::Parent(candidate)
                } else {
                    By::Exact
                },
                resolved: None,
            }));
        }
    }
    Ok(None)
}

/// The opposite of matching a directory that isn't a volume: its metadata may be lost.
fn refuse_unstaged(path: &TargetPath, node: &impl Node) -> Result<(), MatchError> {
    let Some(volume) = path.csi_volume() else {
        return Ok(());
    };
    if !node.is_bare_directory(volume.directory()) {
        return Ok(());
    }
    Err(MatchError::unstaged(
        &path.volume_name(),
        volume.directory(),
    ))
}

#[cfg(test)]
mod tests;

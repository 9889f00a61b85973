//! Which of a config's mounts are of deferred volumes (KEP-2857, "Overview of Interactions").

mod alias;
mod subpath;

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crust_mount::mountinfo::MountInfoError;
use crust_mount::overlay;
use crust_mount::place::{Identity, Place};
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::{Config, DeviceNumber, TargetPath};

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
    /// Resolves a source's path.
    fn way(&self, path: &Path) -> Way {
        Way {
            resolved: self.resolved(path),
            is_usual: false,
        }
    }
    /// The volumes that are staged in a pod's directory of CSI volumes, which is listed.
    fn staged_in(&self, csi_directory: &Path) -> Result<Vec<TargetPath>, PodError>;
    /// Where in their file systems these paths lead to; `None` for what isn't there or not known.
    fn places(&self, paths: &[&Path]) -> Result<Vec<Option<Place>>, MountInfoError>;
    /// Returns the places of target paths in their file systems. A path that doesn't exist is taken to be below
    /// its nearest existing parent.
    fn target_places(&self, targets: &[TargetPath]) -> Result<Vec<Option<Place>>, MountInfoError> {
        let paths: Vec<&Path> = targets.iter().map(TargetPath::as_path).collect();
        self.places(&paths)
    }
    /// Returns the identity of a target path's directory. This and its place are looked up once for a create.
    fn target_identity(&self, target: &TargetPath) -> Option<Identity> {
        self.identity(target.as_path())
    }
    /// Target paths that aren't a CSI volume's by their form, so that no parent of a source leads to them.
    /// Some may not be staged any more.
    fn targets_elsewhere(&self) -> Vec<TargetPath> {
        Vec::new()
    }
    /// The target paths of all volumes that are staged on the node. Each entry is read for that.
    fn all_staged(&self) -> Result<Vec<TargetPath>, PodError> {
        Ok(Vec::new())
    }
    /// Returns the identity of what a path leads to, links followed; `None` where nothing is there, and
    /// where no source can lead to a volume but by its path.
    fn identity(&self, _path: &Path) -> Option<Identity> {
        None
    }
    /// Whether target paths are on the file system with this `st_dev`.
    fn holds_targets(&self, _device: DeviceNumber) -> bool {
        false
    }
    /// Whether what is at a path can only be read, by its mount or by its file system.
    fn is_read_only(&self, _path: &Path) -> bool {
        false
    }
    /// Whether a mount is the one of the root directory, or of a kubelet's.
    fn is_usual_mount(&self, _id: u64) -> bool {
        true
    }
    /// Whether a path leads to an overlay.
    fn is_overlay(&self, _path: &Path) -> bool {
        false
    }
    /// The directories of the overlay that a path leads to, and what each has at the path.
    fn overlay_layers(&self, _path: &Path) -> Result<Vec<PathBuf>, MountInfoError> {
        Ok(Vec::new())
    }
    /// Whether the time for the create is over: whoever writes a pod may give it thousands of mounts.
    fn is_overdue(&self) -> bool {
        false
    }
    /// Whether a volume's directory is just that: no mount, and no files below it. One that isn't
    /// there is.
    fn is_bare_directory(&self, directory: &Path) -> bool;
    /// Whether there is something at a path.
    fn exists(&self, path: &Path) -> bool;
    /// Where a path leads in the root file system of a container that is yet to be made.
    fn within(&self, rootfs: &Path, path: &Path) -> PathBuf;
}

/// The result of resolving a source's path.
#[derive(Debug)]
pub(crate) struct Way {
    /// The path with its symbolic links resolved, where that is another one.
    pub(crate) resolved: Option<TargetPath>,
    /// It leads over no mount point, and all target paths are CSI volumes': then it leads to a volume
    /// by its path or not at all.
    pub(crate) is_usual: bool,
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
    #[error(transparent)]
    Crust(FileError),
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
    /// The source is a read-only mount, as an engine makes one for a volume of its own.
    pub(crate) read_only: bool,
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
    /// It is a mount of the volume's directory, or of one below, that an engine made elsewhere.
    Bind,
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
    #[error("volume {volume}: {path} {why}")]
    Alias {
        volume: String,
        path: String,
        why: alias::Why,
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
    match_below_overlays(source, alias::MOST_STACKED, config, node)
}

/// Matches a mount's source, or a layer of an overlay, which may lead through this number of overlays.
fn match_below_overlays(
    source: &Path,
    stacked: usize,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let Some(source) = short(source).filter(|source| source.is_absolute()) else {
        return Ok(None);
    };
    let given = TargetPath::new(&*source).ok();
    // containerd and CRI-O resolve sources, others don't: a link must not lead past the match.
    let Way { resolved, is_usual } = node.way(&source);
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
    let given_first: Vec<&TargetPath> = spellings.into_iter().flatten().collect();
    let alias = (!is_usual).then(|| alias::find(&given_first, stacked, config, node));
    if let Some(found) = alias.transpose()?.flatten() {
        return Ok(Some(found));
    }
    if config.unstaged == Unstaged::Refuse {
        for spelling in spellings.into_iter().flatten() {
            refuse_unstaged(spelling, node)?;
            subpath::refuse_unstaged(spelling, node)?;
        }
    }
    Ok(None)
}

/// Refuses an overlay whose mount options name a volume's directory as one of its layers. The container
/// would see the directory on the node's disk instead of the volume. Relative layers are below the bundle, where
/// the delegates mount them from.
pub(crate) fn refuse_overlay(
    destination: &str,
    options: &[Cow<'_, str>],
    bundle: &Path,
    config: &Config,
    node: &impl Node,
) -> Result<(), MatchError> {
    for option in options {
        let layers = overlay::layers(option.as_bytes()).into_iter();
        let layers: Vec<PathBuf> = layers.map(|layer| bundle.join(layer)).collect();
        let stacked = alias::MOST_STACKED - 1;
        alias::refuse_layers(Path::new(destination), &layers, stacked, config, node)?;
    }
    Ok(())
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
            || is_below_a_root(parent, config)
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
                read_only: false,
                resolved: None,
            }));
        }
    }
    Ok(None)
}

fn is_below_a_root(path: &Path, config: &Config) -> bool {
    let mut roots = config.match_roots.iter();
    roots.any(|root| path.starts_with(root) && path != root)
}

/// Whether a directory below this target path is a subPath of its volume.
fn matches_below(target: &TargetPath, config: &Config) -> bool {
    target.csi_volume().is_some() || is_below_a_root(target.as_path(), config)
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

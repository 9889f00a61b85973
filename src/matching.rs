//! Matches the mounts of a config with deferred volumes (KEP-2857, "Overview of Interactions").

mod bound_elsewhere;
mod node;
mod subpath;

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crust_blockfs::identity::LookupError;
use crust_blockfs::overlay;
use crust_blockfs::place::PlaceError;
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};

pub(crate) use node::{Node, NonCsiTargets, PodError, Resolved};

/// A mount of a deferred volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// The volume's target path, as it was given.
    pub(crate) volume: TargetPath,
    /// The directory or file of the volume that the mount shows; empty for the whole volume.
    pub(crate) subpath: PathBuf,
    /// How the source led to it.
    pub(crate) by: MatchedBy,
    /// The source is a read-only mount, as an engine makes one for a volume of its own.
    pub(crate) read_only: bool,
    /// The source with its links resolved, where that was what led to it.
    pub(crate) resolved: Option<TargetPath>,
}

/// How a source leads to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MatchedBy {
    /// It is where the volume is staged.
    Exact,
    /// A parent of it is.
    Parent { prefix: TargetPath },
    /// It is a stock kubelet's bind of a subPath.
    SubpathBind,
    /// It is a mount of the volume's directory, or of one below, that an engine made elsewhere.
    Bind,
}

/// The reason why a mount can neither be matched nor passed on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchError {
    /// Once a directory matches, nothing falls back: the workload would write to the node's disk.
    #[error("volume {volume}: {source}")]
    Entry { volume: String, source: EntryError },
    #[error("volume {volume}: {path} {why}")]
    Subpath {
        volume: String,
        path: String,
        why: subpath::Refusal,
    },
    #[error("volume {volume}: {path} {why}")]
    Elsewhere {
        volume: String,
        path: String,
        why: bound_elsewhere::Refusal,
    },
    /// The volume's target path, or a source that may be the volume's, can't be looked up.
    #[error("volume {volume}: {source}")]
    Place { volume: String, source: PlaceError },
    /// A source can't be looked up, and may be any volume's.
    #[error(transparent)]
    Source(#[from] PlaceError),
    #[error(
        "{source_path} is {by_kernel} for the kernel, and {cleaned} for a delegate that removes `..` first; \
         hint: give the source without `..`"
    )]
    Readings {
        source_path: String,
        by_kernel: String,
        cleaned: String,
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

impl From<LookupError> for MatchError {
    fn from(source: LookupError) -> Self {
        Self::Source(source.into())
    }
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
///
/// Where a link stands before a `..`, the kernel finds another directory than a delegate that removes `..` from
/// the text first, as runc does with relative sources (Go's `filepath.Join`). Both are matched, and the mount is
/// refused if they differ.
pub(crate) fn match_source(
    source: &Path,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let found = match_below_overlays(source, bound_elsewhere::MOST_STACKED, config, node)?;
    if !source.components().any(|part| part == Component::ParentDir) {
        return Ok(found);
    }
    let cleaned = clean(source);
    let other = match_below_overlays(&cleaned, bound_elsewhere::MOST_STACKED, config, node)?;
    let shows = |found: &Option<Match>| {
        let found = found.as_ref();
        found.map(|found| (found.volume.clone(), found.subpath.clone()))
    };
    if shows(&found) == shows(&other) {
        return Ok(found);
    }
    let told = |found: Option<Match>| match found {
        Some(found) => format!("volume {}", found.volume.volume_name()),
        None => "no volume".to_owned(),
    };
    Err(MatchError::Readings {
        source_path: source.display().to_string(),
        by_kernel: told(found),
        cleaned: told(other),
    })
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
    let resolved = node.resolve(&source)?;
    let other = resolved.path.filter(|path| given.as_ref() != Some(path));
    let spellings: Vec<&TargetPath> = given.iter().chain(&other).collect();
    let by_links = |found: Match, spelling: &TargetPath| Match {
        resolved: (given.as_ref() != Some(spelling)).then(|| spelling.clone()),
        ..found
    };
    for spelling in &spellings {
        if let Some(found) = match_path(spelling, config, node)? {
            return Ok(Some(by_links(found, spelling)));
        }
    }
    for spelling in &spellings {
        if let Some(found) = subpath::find(spelling, node)? {
            return Ok(Some(by_links(found, spelling)));
        }
    }
    // A directory that holds a kubelet's directory belongs to no single volume.
    let mut holders = spellings.iter();
    if !holders.any(|path| bound_elsewhere::holds_kubelet(path, config)) {
        for spelling in &spellings {
            bound_elsewhere::refuse_below(spelling, config, node)?;
        }
        let has_csi_form = || spellings.iter().any(|path| path.csi_volume().is_some());
        if let Some(path) = spellings.last()
            && (!resolved.only_by_path || has_csi_form())
            && let Some(found) =
                bound_elsewhere::find(path, resolved.identity, stacked, config, node)?
        {
            return Ok(Some(found));
        }
    }
    if config.unstaged == Unstaged::Refuse {
        for spelling in &spellings {
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
        let stacked = bound_elsewhere::MOST_STACKED - 1;
        bound_elsewhere::refuse_layers(Path::new(destination), &layers, stacked, config, node)?;
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
    let clean = clean(source);
    is_short(&clean).then_some(Cow::Owned(clean))
}

/// Returns a path without its `.` and `..`, by its text alone.
fn clean(path: &Path) -> PathBuf {
    // A config may be any number of megabytes. A path that grows takes three times its length meanwhile.
    let mut clean = PathBuf::with_capacity(path.as_os_str().len());
    for component in path.components() {
        match component {
            Component::ParentDir => _ = clean.pop(),
            Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}

fn match_path(
    path: &TargetPath,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let may_be_parent = parents_that_match(path, config);
    let candidates = path.ancestors();
    let candidates = candidates.take_while(|(at, _)| at == path || may_be_parent(at));
    let found = nearest_staged(path, candidates, |_, _| Ok(true), node)?;
    Ok(found.map(|found| Match {
        volume: found.volume,
        subpath: found.below.to_owned(),
        by: if found.at == *path {
            MatchedBy::Exact
        } else {
            MatchedBy::Parent { prefix: found.at }
        },
        read_only: false,
        resolved: None,
    }))
}

/// A volume that is staged at a path or at a parent of it.
struct Staged<'a> {
    /// The target path that it is staged at.
    at: TargetPath,
    /// Its target path, as it was given.
    volume: TargetPath,
    /// The rest of the path below it.
    below: &'a Path,
}

/// Returns the volume at the first of these candidates, which are a path or its parents, that something is staged at,
/// and that `is_it` accepts.
fn nearest_staged<'p>(
    path: &TargetPath,
    candidates: impl Iterator<Item = (TargetPath, &'p Path)>,
    is_it: impl Fn(&TargetPath, &Path) -> Result<bool, MatchError>,
    node: &impl Node,
) -> Result<Option<Staged<'p>>, MatchError> {
    let known = node.staged_lengths(path);
    let may_be = |at: &TargetPath| known.as_ref().is_none_or(|it| it.contains(&at.length()));
    for (at, below) in candidates.filter(|(at, _)| may_be(at)) {
        let staged = staged(&at, node);
        if matches!(staged, Ok(None)) || !is_it(&at, below)? {
            continue;
        }
        return Ok(staged?.map(|volume| Staged { at, volume, below }));
    }
    Ok(None)
}

fn staged(target: &TargetPath, node: &impl Node) -> Result<Option<TargetPath>, MatchError> {
    node.staged(target).map_err(|source| MatchError::Entry {
        volume: target.volume_name(),
        source,
    })
}

/// Returns whether a parent of the path can be matched by it: the rest of the path is a subPath of the parent's volume.
fn parents_that_match(path: &TargetPath, config: &Config) -> impl Fn(&TargetPath) -> bool {
    let floor = path.csi_volume();
    let floor = floor.map(|volume| volume.directory().to_owned());
    move |parent| {
        let parent = parent.as_path();
        let is_in_csi_volume = floor.as_ref().is_some_and(|it| parent.starts_with(it));
        is_in_csi_volume || is_below_a_root(parent, config)
    }
}

fn is_below_a_root(path: &Path, config: &Config) -> bool {
    let mut roots = config.match_roots.iter();
    roots.any(|root| path.starts_with(root) && path != root)
}

/// The opposite of matching a directory that isn't a volume: its metadata may be lost.
fn refuse_unstaged(path: &TargetPath, node: &impl Node) -> Result<(), MatchError> {
    let Some(volume) = path.csi_volume() else {
        return Ok(());
    };
    if !node.is_bare_directory(volume.directory())? {
        return Ok(());
    }
    Err(MatchError::unstaged(
        &path.volume_name(),
        volume.directory(),
    ))
}

#[cfg(test)]
mod tests;

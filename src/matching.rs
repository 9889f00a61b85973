//! Matches a config's mounts with deferred volumes by their sources (KEP-2857, "Overview of Interactions").

mod indirect;
mod node;
mod subpath;

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use crust_blockfs::identity::LookupError;
use crust_blockfs::location::LocationError;
use crust_blockfs::overlay;
use crust_state::config::Unstaged;
use crust_state::crust::EntryError;
use crust_state::{Config, TargetPath};

use indirect::IndirectRefusal;
pub(crate) use node::{NodeLookup, NonCsiTargets, ResolvedSource, StagedListError};
use subpath::SubpathRefusal;

/// A mount of a deferred volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Match {
    /// The volume's target path as it was given to stage.
    pub(crate) volume: TargetPath,
    /// Directory or file of the volume that the mount shows; empty for the whole volume.
    pub(crate) subpath: PathBuf,
    pub(crate) by: MatchedBy,
    /// Whether the source is a read-only mount. Engines make such mounts for their own volumes.
    pub(crate) read_only: bool,
    /// The source with its links resolved; `None` if the source matched as it was given.
    pub(crate) resolved: Option<TargetPath>,
}

/// The way in which a source leads to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MatchedBy {
    /// The source is the volume's target path.
    Exact,
    /// The source is below the volume's target path, `prefix`.
    Parent { prefix: TargetPath },
    /// The source is a stock kubelet's bind of a subPath.
    SubpathBind,
    /// The source is a bind, made by an engine, of the volume's directory or of a directory below it.
    Bind,
}

/// The reason why a mount can neither be matched nor passed through.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MatchError {
    /// The directory matches, but its entry can't be read. The mount is refused rather than passed through: the
    /// workload would write to the node's disk.
    #[error("volume {volume}: {source}")]
    Entry { volume: String, source: EntryError },
    #[error("volume {volume}: {path} {reason}")]
    Subpath {
        volume: String,
        path: String,
        reason: SubpathRefusal,
    },
    #[error("volume {volume}: {path} {reason}")]
    Indirect {
        volume: String,
        path: String,
        reason: IndirectRefusal,
    },
    /// The lookup of the volume's target path, or of a source that may be the volume's, failed.
    #[error("volume {volume}: {source}")]
    VolumeLookup {
        volume: String,
        source: LocationError,
    },
    /// The lookup of a source failed, and the source may be any volume's.
    #[error(transparent)]
    SourceLookup(#[from] LocationError),
    #[error(
        "the source {source_path} is ambiguous: the kernel resolves it to {by_kernel}, but a delegate that first \
         removes `..` from the text resolves it to {cleaned}; hint: give the source without `..`"
    )]
    AmbiguousPath {
        source_path: String,
        by_kernel: String,
        cleaned: String,
    },
    #[error(transparent)]
    StagedList(#[from] StagedListError),
    #[error(
        "volume {volume}: nothing is staged for {directory}, which is neither mounted nor holds \
         files: data written there would be lost; hint: recreate the pod so that its CSI driver stages the volume \
         again, or set unstaged = \"pass\" in runcrust's configuration"
    )]
    Unstaged { volume: String, directory: String },
}

impl From<LookupError> for MatchError {
    fn from(source: LookupError) -> Self {
        Self::SourceLookup(source.into())
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

/// Matches one mount by its source. The exact source may match anywhere. A parent of the source may match only at
/// or below a CSI volume's own directory, or below one of `match_roots`.
///
/// If the source has a symbolic link before a `..`, the kernel finds a different directory than a delegate that
/// removes `..` from the text first, as runc does with relative sources (Go's `filepath.Join`). Both readings are
/// matched, and the mount is refused if they lead to different volumes.
pub(crate) fn match_source(
    source: &Path,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let found = match_through_overlays(source, indirect::MAX_OVERLAY_DEPTH, config, node)?;
    if !source.components().any(|part| part == Component::ParentDir) {
        return Ok(found);
    }
    let cleaned = clean(source);
    let other = match_through_overlays(&cleaned, indirect::MAX_OVERLAY_DEPTH, config, node)?;
    let volume_and_subpath = |found: &Option<Match>| {
        let found = found.as_ref();
        found.map(|found| (found.volume.clone(), found.subpath.clone()))
    };
    if volume_and_subpath(&found) == volume_and_subpath(&other) {
        return Ok(found);
    }
    let describe = |found: Option<Match>| match found {
        Some(found) => format!("volume {}", found.volume.volume_name()),
        None => "no volume".to_owned(),
    };
    Err(MatchError::AmbiguousPath {
        source_path: source.display().to_string(),
        by_kernel: describe(found),
        cleaned: describe(other),
    })
}

/// Matches a mount's source or an overlay's layer. Follows at most `overlay_depth` overlays.
fn match_through_overlays(
    source: &Path,
    overlay_depth: usize,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let Some(source) = within_path_max(source).filter(|source| source.is_absolute()) else {
        return Ok(None);
    };
    let given = TargetPath::new(&*source).ok();
    // containerd and CRI-O resolve the links of sources, the other engines don't. A source with a link has to match
    // too.
    let resolved = node.resolve(&source)?;
    let other = resolved.path.filter(|path| given.as_ref() != Some(path));
    let spellings: Vec<&TargetPath> = given.iter().chain(&other).collect();
    let with_resolved = |found: Match, spelling: &TargetPath| Match {
        resolved: (given.as_ref() != Some(spelling)).then(|| spelling.clone()),
        ..found
    };
    for spelling in &spellings {
        if let Some(found) = match_path(spelling, config, node)? {
            return Ok(Some(with_resolved(found, spelling)));
        }
    }
    for spelling in &spellings {
        if let Some(found) = subpath::find(spelling, node)? {
            return Ok(Some(with_resolved(found, spelling)));
        }
    }
    // A directory that contains a kubelet's directory belongs to no single volume.
    let mut paths = spellings.iter();
    if !paths.any(|path| indirect::contains_kubelet_dir(path, config)) {
        for spelling in &spellings {
            indirect::refuse_below(spelling, config, node)?;
        }
        let has_csi_form = || spellings.iter().any(|path| path.csi_volume().is_some());
        if let Some(path) = spellings.last()
            && (!resolved.matches_only_by_path || has_csi_form())
            && let Some(found) =
                indirect::find(path, resolved.identity, overlay_depth, config, node)?
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

/// Refuses an overlay whose mount options name a volume's directory as one of its layers. The container would see
/// the directory on the node's disk instead of the volume. Relative layers are resolved against the bundle, as the
/// delegates do.
pub(crate) fn refuse_overlay(
    destination: &str,
    options: &[Cow<'_, str>],
    bundle: &Path,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<(), MatchError> {
    for option in options {
        let layers = overlay::layers_in_options(option.as_bytes()).into_iter();
        let layers: Vec<PathBuf> = layers.map(|layer| bundle.join(layer)).collect();
        let overlay_depth = indirect::MAX_OVERLAY_DEPTH - 1;
        indirect::refuse_layers(Path::new(destination), &layers, overlay_depth, config, node)?;
    }
    Ok(())
}

/// The length of the longest path that the kernel accepts, in bytes: `PATH_MAX` without the final NUL.
const MAX_PATH_BYTES: usize = 4095;

/// Returns the source if it is short enough for the kernel. Otherwise returns the source without `.` and `..` if that
/// is short enough, since runc removes them from a relative source before it mounts it. Returns `None` if the source
/// can't be mounted.
fn within_path_max(source: &Path) -> Option<Cow<'_, Path>> {
    let is_short = |path: &Path| path.as_os_str().len() <= MAX_PATH_BYTES;
    if is_short(source) {
        return Some(Cow::Borrowed(source));
    }
    let clean = clean(source);
    is_short(&clean).then_some(Cow::Owned(clean))
}

/// Removes `.` and `..` from a path by its text alone.
fn clean(path: &Path) -> PathBuf {
    // A source can be megabytes long, and a buffer that grows would need up to three times its length.
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
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let may_be_parent = parent_predicate(path, config);
    let candidates = path.ancestors();
    let candidates =
        candidates.take_while(|(candidate, _)| candidate == path || may_be_parent(candidate));
    let found = find_nearest_staged(path, candidates, |_, _| Ok(true), node)?;
    Ok(found.map(|found| Match {
        volume: found.volume,
        subpath: found.below.to_owned(),
        by: if found.matched_path == *path {
            MatchedBy::Exact
        } else {
            MatchedBy::Parent {
                prefix: found.matched_path,
            }
        },
        read_only: false,
        resolved: None,
    }))
}

/// A volume that is staged at a path or at a parent of it.
struct StagedVolume<'a> {
    /// The path, or the parent of it, where the volume was found.
    matched_path: TargetPath,
    /// The volume's target path as it was given to stage.
    volume: TargetPath,
    /// The rest of the path below `matched_path`.
    below: &'a Path,
}

/// Returns the volume that is staged at the first of the `candidates` that `accepts` accepts. The candidates are `path`
/// or its parents, each with the rest of the path below it.
fn find_nearest_staged<'p>(
    path: &TargetPath,
    candidates: impl Iterator<Item = (TargetPath, &'p Path)>,
    accepts: impl Fn(&TargetPath, &Path) -> Result<bool, MatchError>,
    node: &impl NodeLookup,
) -> Result<Option<StagedVolume<'p>>, MatchError> {
    let known = node.staged_lengths(path);
    let may_be_staged = |path: &TargetPath| {
        known
            .as_ref()
            .is_none_or(|lengths| lengths.contains(&path.length()))
    };
    for (candidate, below) in candidates.filter(|(candidate, _)| may_be_staged(candidate)) {
        let staged = find_staged(&candidate, node);
        if matches!(staged, Ok(None)) || !accepts(&candidate, below)? {
            continue;
        }
        return Ok(staged?.map(|volume| StagedVolume {
            matched_path: candidate,
            volume,
            below,
        }));
    }
    Ok(None)
}

fn find_staged(
    target: &TargetPath,
    node: &impl NodeLookup,
) -> Result<Option<TargetPath>, MatchError> {
    node.staged(target).map_err(|source| MatchError::Entry {
        volume: target.volume_name(),
        source,
    })
}

/// Returns a predicate for the parents of `path`. It is true if a volume that is staged at the parent matches `path`,
/// with the rest of the path as the subPath.
fn parent_predicate(path: &TargetPath, config: &Config) -> impl Fn(&TargetPath) -> bool {
    let floor = path.csi_volume();
    let floor = floor.map(|volume| volume.directory().to_owned());
    move |parent| {
        let parent = parent.as_path();
        let is_in_csi_volume = floor.as_ref().is_some_and(|it| parent.starts_with(it));
        is_in_csi_volume || is_below_match_root(parent, config)
    }
}

fn is_below_match_root(path: &Path, config: &Config) -> bool {
    let mut roots = config.match_roots.iter();
    roots.any(|root| path.starts_with(root) && path != root)
}

/// Refuses a CSI volume's directory that is bare although nothing is staged for it: its metadata may have been lost.
fn refuse_unstaged(path: &TargetPath, node: &impl NodeLookup) -> Result<(), MatchError> {
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

//! Sources that lead to a volume by another path than its target path: an engine has bound the directory
//! elsewhere first, or made it a layer of an overlay. If such a source were passed on as it is, the
//! workload would write to the node's disk.
//!
//! | engine | what it hands on |
//! |---|---|
//! | buildah, any volume | a bind below its own directory, `buildah-bind-target-N` |
//! | podman, docker: a named volume with `type=none,o=bind` | the volume's `_data`, a bind |
//! | podman `kube play` and docker with a subPath of a volume | a bind of the subdirectory |
//! | a stock kubelet with a subPath of a hostPath volume | a bind below `volume-subpaths` |
//! | podman and buildah, `:O`; a named volume of type overlay | an overlay |
//!
//! The mount table says by which other paths such a directory can be reached. Each of them is matched as the source's
//! own path is, and the nearest target path wins. Filters that need no mount table come first, since most sources are
//! no such directory.

use std::path::{Path, PathBuf};

use crust_blockfs::identity::Identity;
use crust_blockfs::mount_kind::MountKind;
use crust_blockfs::place::Place;
use crust_state::config::Unstaged;
use crust_state::{Config, TargetPath};

use super::node::NonCsiTargets;
use super::{
    Match, MatchError, MatchedBy, Node, Staged, is_below_a_root, nearest_staged, parents_that_match,
};

/// The reason why a source that leads to a volume can't be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "leads to a directory below its target path {target}, which is a subPath of the volume only \
         where match_roots says so; hint: {}mount {target} as a whole",
        match_root(target)
    )]
    Below { target: TargetPath },
    #[error(
        "lies below its target path {target}, but something else is mounted there, and the volume has a directory \
         of its own by that name; hint: mount {target} as a whole, or mount the other file system at a directory \
         outside {target}"
    )]
    OtherMount { target: TargetPath },
    #[error(
        "is a bind mount of its target path {target} or of a directory below it ({} on device {}), which has been \
         removed since; hint: unmount it, or let the engine make its volume again",
        place.path.display(), place.device
    )]
    Removed { target: TargetPath, place: Place },
    #[error(
        "is an overlay with {} as one of its directories, and an overlay of a volume isn't \
         supported: the volume's files aren't in that directory; hint: mount the volume itself, \
         without the option O or a volume of type overlay", .0.display()
    )]
    Overlay(PathBuf),
}

/// Returns the part of a hint that says which root to configure; empty where that would be `/`, which the
/// configuration refuses.
fn match_root(target: &TargetPath) -> String {
    match target.as_path().parent() {
        Some(parent) if parent.parent().is_some() => {
            let root = parent.to_string_lossy();
            format!("set match_roots = [{root:?}] in runcrust's configuration, or ")
        }
        _ => String::new(),
    }
}

/// A source that didn't match by its path, nor as a kubelet's bind of a subPath of the pod's own volume.
struct Source<'a> {
    path: &'a TargetPath,
    identity: Identity,
}

/// Finds the volume that a source leads to although neither its path nor that of a parent is where the
/// volume is staged. `identity` is the source's, if it is known by now; `stacked` is the number of overlays that
/// the source may lead through.
pub(super) fn find(
    path: &TargetPath,
    identity: Option<Identity>,
    stacked: usize,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let Some(targets) = node.targets_elsewhere() else {
        return Ok(None);
    };
    let identity = match identity {
        None => node.identity(path.as_path())?,
        known => known,
    };
    let Some(mut identity) = identity else {
        return Ok(None);
    };
    let mut kind = mount_kind(&identity, path, node)?;
    if kind == MountKind::Autofs {
        // The delegate's bind mounts what belongs there, and shows that.
        let Some(mounted) = node.trigger_automount(path.as_path())? else {
            return Ok(None);
        };
        identity = mounted;
        kind = mount_kind(&identity, path, node)?;
    }
    let source = Source { path, identity };
    if let Some(found) = find_directory(&source, targets, config, node)? {
        return Ok(Some(found));
    }
    if stacked > 0 && kind == MountKind::Overlay {
        let layers = node.overlay_layers(path.as_path())?;
        refuse_layers(path.as_path(), &layers, stacked - 1, config, node)?;
    }
    Ok(None)
}

/// Whether a directory holds a kubelet's directory: it belongs to no single volume.
pub(super) fn holds_kubelet(path: &TargetPath, config: &Config) -> bool {
    let mut kubelets = config.kubelet_dirs.iter();
    kubelets.any(|dir| dir.starts_with(path.as_path()))
}

/// The number of overlays that the kernel stacks (`FILESYSTEM_MAX_STACK_DEPTH` of `linux/fs.h`). Without a limit
/// the lookup of an overlay over its own mount point, as systemd-sysext makes one on `/usr`, would never end.
pub(super) const MOST_STACKED: usize = 2;

/// Returns the kind of the mount that a source is on. The kernel is asked only where that may matter: not for the
/// mount of the root directory or of a kubelet's, whose volumes are found by path, nor for a directory on a block
/// device. An overlay has no block device, but a file on it can have that of a layer (the kernel's
/// `Documentation/filesystems/overlayfs.rst`, "Inode properties").
fn mount_kind(
    source: &Identity,
    path: &TargetPath,
    node: &impl Node,
) -> Result<MountKind, MatchError> {
    let is_asked = (source.is_mount_root || !node.is_usual_mount(source.mount))
        && (source.device.major() == 0 || !source.is_directory);
    if !is_asked {
        return Ok(MountKind::Other);
    }
    Ok(node.mount_kind(path.as_path(), source.mount)?)
}

/// Refuses an overlay that has a volume's directory among its layers. `stacked` is the number of overlays that
/// a layer may lead through.
pub(super) fn refuse_layers(
    path: &Path,
    layers: &[PathBuf],
    stacked: usize,
    config: &Config,
    node: &impl Node,
) -> Result<(), MatchError> {
    for layer in layers {
        if let Some(found) = super::match_below_overlays(layer, stacked, config, node)? {
            return Err(refused(
                &found.volume,
                path,
                Refusal::Overlay(layer.to_owned()),
            ));
        }
    }
    Ok(())
}

/// Refuses a directory below a target path that the lookup of its parents doesn't reach.
pub(super) fn refuse_below(
    path: &TargetPath,
    config: &Config,
    node: &impl Node,
) -> Result<(), MatchError> {
    let Some(targets) = node.targets_elsewhere().filter(|it| !it.is_empty()) else {
        return Ok(());
    };
    let parents = path.ancestors().skip(1);
    let parents = parents.take_while(|(parent, _)| !holds_kubelet(parent, config));
    let parents = parents.filter(|(parent, _)| targets.may_have(parent));
    let Some(found) = nearest_staged(path, parents, |_, _| Ok(true), node)? else {
        return Ok(());
    };
    let target = found.at;
    let [below, whole] = [path, &target].map(|path| node.identity(path.as_path()));
    let mount = |found: Option<Identity>| found.map(|found| found.mount);
    let why = match (mount(below?), mount(whole?)) {
        (Some(below), Some(whole)) if below != whole => Refusal::OtherMount { target },
        _ => Refusal::Below { target },
    };
    Err(refused(&found.volume, path.as_path(), why))
}

/// Finds the volume whose directory, or a directory of it, is the source by another path.
fn find_directory(
    source: &Source<'_>,
    targets: &NonCsiTargets,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let Source { path, identity } = source;
    for target in targets.same_directory(identity, node) {
        if let Some(volume) = super::staged(target, node)? {
            return Ok(Some(found_at(volume, PathBuf::new(), path, node)?));
        }
    }
    let may_be_csi = node.is_indexed(identity.device) && !is_told_by_path(source, node);
    if !may_be_csi && !targets.may_hold(identity, node) {
        return Ok(None);
    }
    let Some(place) = node.place(path.as_path())? else {
        return Ok(None);
    };
    if targets.is_known_as_none(&place) {
        return Ok(None);
    }
    let mut paths = node.paths_to(&place);
    paths.retain(|other| other != *path);
    let mut nearest: Option<Staged<'_>> = None;
    for other in &paths {
        let is_at_place = |at: &TargetPath, below: &Path| is_at(at, &place, below, node);
        let may_be_parent = parents_that_match(other, config);
        let candidates = other.ancestors().filter(|(at, _)| {
            let is_elsewhere = || targets.may_have(at) && !holds_kubelet(at, config);
            may_be_parent(at) || is_elsewhere()
        });
        let found = nearest_staged(other, candidates, is_at_place, node)?;
        let depth = |found: &Staged<'_>| found.below.components().count();
        nearest = nearest.into_iter().chain(found).min_by_key(depth);
    }
    if let Some(found) = nearest {
        return found_below(source, &found, &place, config, node);
    }
    if config.unstaged == Unstaged::Refuse {
        for other in &paths {
            refuse_bare(other, &place, node)?;
        }
    }
    targets.know_as_none(place);
    Ok(None)
}

/// Whether a path leads to the place that is above another by these names. What the mount table says may be hidden
/// by what was mounted above it since.
fn is_at(
    path: &TargetPath,
    place: &Place,
    below: &Path,
    node: &impl Node,
) -> Result<bool, MatchError> {
    let found = node
        .target_place(path)
        .map_err(|source| MatchError::Place {
            volume: path.volume_name(),
            source,
        })?;
    let expected = place.path.ancestors().nth(below.components().count());
    Ok(found.is_some_and(|it| it.device == place.device && Some(&*it.path) == expected))
}

/// The rule for lost metadata: a bind of a CSI volume's directory, or of one below, that is bare.
fn refuse_bare(path: &TargetPath, place: &Place, node: &impl Node) -> Result<(), MatchError> {
    let Some((directory, below)) = path.csi_directory() else {
        return Ok(());
    };
    if is_at(&directory, place, below, node)? {
        super::refuse_unstaged(path, node)?;
    }
    Ok(())
}

/// Whether the source would have been found by its path if it were of a CSI volume: it is reached by the mount of
/// the root directory or of a kubelet's, and not at its root. A path of CSI form that nothing is staged for may
/// be another path of one, since a kubelet's directory can be a bind mount.
fn is_told_by_path(source: &Source<'_>, node: &impl Node) -> bool {
    let Source { path, identity } = source;
    !identity.is_mount_root && path.csi_volume().is_none() && node.is_usual_mount(identity.mount)
}

/// Decides about a source whose place is at or below that of a staged target path.
fn found_below(
    source: &Source<'_>,
    found: &Staged<'_>,
    place: &Place,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let path = source.path;
    let target = found.at.clone();
    let is_whole = found.below.as_os_str().is_empty();
    let matches_below = target.csi_volume().is_some() || is_below_a_root(target.as_path(), config);
    let why = if place.deleted {
        let place = place.clone();
        Refusal::Removed { target, place }
    } else if !is_whole && !matches_below {
        Refusal::Below { target }
    } else {
        let (volume, subpath) = (found.volume.clone(), found.below.to_owned());
        return Ok(Some(found_at(volume, subpath, path, node)?));
    };
    Err(refused(&found.volume, path.as_path(), why))
}

fn found_at(
    volume: TargetPath,
    subpath: PathBuf,
    path: &TargetPath,
    node: &impl Node,
) -> Result<Match, MatchError> {
    // The node's own file system may be mounted read-only, which says nothing of the volume.
    let read_only = node.is_read_only(path.as_path())? && !node.is_read_only(volume.as_path())?;
    Ok(Match {
        volume,
        subpath,
        read_only,
        by: MatchedBy::Bind,
        resolved: None,
    })
}

fn refused(volume: &TargetPath, path: &Path, why: Refusal) -> MatchError {
    MatchError::Elsewhere {
        volume: volume.volume_name(),
        path: path.display().to_string(),
        why,
    }
}

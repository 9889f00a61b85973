//! Matches indirect sources, which lead to a volume by a path other than its target path: an engine has bound the
//! directory elsewhere first, or made it a layer of an overlay. If such a source were passed through, the workload
//! would write to the node's disk.
//!
//! | engine | source in the config |
//! |---|---|
//! | buildah, any volume | a bind below its own directory, `buildah-bind-target-N` |
//! | podman, docker: a named volume with `type=none,o=bind` | the volume's `_data`, a bind |
//! | podman `kube play` and docker with a subPath of a volume | a bind of the subdirectory |
//! | a stock kubelet with a subPath of a hostPath volume | a bind below `volume-subpaths` |
//! | podman and buildah, `:O`; a named volume of type overlay | an overlay |
//!
//! The mount table shows the other paths by which such a directory can be reached. Each of them is matched as the
//! source's own path is, and the nearest target path wins. Checks that don't read the mount table come first, since
//! most sources aren't indirect.

use std::path::{Path, PathBuf};

use crust_blockfs::identity::FileIdentity;
use crust_blockfs::location::FsLocation;
use crust_blockfs::mount_kind::MountKind;
use crust_state::config::Unstaged;
use crust_state::{Config, TargetPath};

use super::node::NonCsiTargets;
use super::{
    Match, MatchError, MatchedBy, NodeLookup, StagedVolume, find_nearest_staged,
    is_below_match_root, parent_predicate,
};

/// The reason why an indirect source is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IndirectRefusal {
    #[error(
        "leads to a directory below the volume's target path {target}, and such a directory is accepted as a subPath \
         only below match_roots; hint: {}mount {target} as a whole",
        match_root_hint(target)
    )]
    Below { target: TargetPath },
    #[error(
        "is below the volume's target path {target}, but something else is mounted there, and the volume has a \
         directory of the same name; hint: mount {target} as a whole, or mount the other file system at a directory \
         outside {target}"
    )]
    OtherMount { target: TargetPath },
    #[error(
        "is a bind mount of the volume's target path {target} or of a directory below it ({} on device {}), which \
         has been removed since; hint: unmount it, or recreate the engine's volume",
        location.path.display(), location.device
    )]
    Removed {
        target: TargetPath,
        location: FsLocation,
    },
    #[error(
        "is an overlay with the layer {}, and an overlay of a volume isn't supported: the volume's files aren't in \
         that directory; hint: mount the volume itself, without the option O and without a volume of type overlay",
        .0.display()
    )]
    Overlay(PathBuf),
}

/// Returns the part of a hint that says which match root to configure; empty if that would be `/`, which the
/// configuration refuses.
fn match_root_hint(target: &TargetPath) -> String {
    match target.as_path().parent() {
        Some(parent) if parent.parent().is_some() => {
            let root = parent.to_string_lossy();
            format!("set match_roots = [{root:?}] in runcrust's configuration, or ")
        }
        _ => String::new(),
    }
}

/// A source that matched neither by its path nor as kubelet's bind of a subPath of the pod's own volume.
struct IdentifiedSource<'a> {
    path: &'a TargetPath,
    identity: FileIdentity,
}

/// Finds the volume that a source leads to although neither its path nor a parent of it is the volume's target path.
/// `identity` is the source's, if it is already known. Follows at most `overlay_depth` overlays.
pub(super) fn find(
    path: &TargetPath,
    identity: Option<FileIdentity>,
    overlay_depth: usize,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let Some(targets) = node.non_csi_targets() else {
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
        // The delegate's bind triggers the automount, and shows what was mounted.
        let Some(mounted) = node.trigger_automount(path.as_path())? else {
            return Ok(None);
        };
        identity = mounted;
        kind = mount_kind(&identity, path, node)?;
    }
    let source = IdentifiedSource { path, identity };
    if let Some(found) = find_directory(&source, targets, config, node)? {
        return Ok(Some(found));
    }
    if overlay_depth > 0 && kind == MountKind::Overlay {
        let layers = node.overlay_layers(path.as_path())?;
        refuse_layers(path.as_path(), &layers, overlay_depth - 1, config, node)?;
    }
    Ok(None)
}

/// Returns whether a directory is or contains a kubelet's directory. Such a directory belongs to no single volume.
pub(super) fn contains_kubelet_dir(path: &TargetPath, config: &Config) -> bool {
    let mut kubelets = config.kubelet_dirs.iter();
    kubelets.any(|dir| dir.starts_with(path.as_path()))
}

/// The number of overlays that the kernel stacks (`FILESYSTEM_MAX_STACK_DEPTH` in `linux/fs.h`). Without a limit, the
/// lookup of an overlay over its own mount point would never end; systemd-sysext mounts one on `/usr`.
pub(super) const MAX_OVERLAY_DEPTH: usize = 2;

/// Returns the kind of the mount that a source is on. The kernel is asked only if the kind may matter. It doesn't
/// matter on the mount of the root directory or of a kubelet's directory, where volumes are found by path, nor for a
/// directory on a block device. An overlay has no block device, but a file on it can have the device number of a layer
/// (the kernel's `Documentation/filesystems/overlayfs.rst`, "Inode properties").
fn mount_kind(
    source: &FileIdentity,
    path: &TargetPath,
    node: &impl NodeLookup,
) -> Result<MountKind, MatchError> {
    let may_matter = (source.is_mount_root || !node.is_root_or_kubelet_mount(source.mount))
        && (source.device.major() == 0 || !source.is_directory);
    if !may_matter {
        return Ok(MountKind::Other);
    }
    Ok(node.mount_kind(path.as_path(), source.mount)?)
}

/// Refuses an overlay that has a volume's directory among its layers. Follows at most `overlay_depth` overlays from
/// each layer.
pub(super) fn refuse_layers(
    path: &Path,
    layers: &[PathBuf],
    overlay_depth: usize,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<(), MatchError> {
    for layer in layers {
        if let Some(found) = super::match_through_overlays(layer, overlay_depth, config, node)? {
            return Err(refusal(
                &found.volume,
                path,
                IndirectRefusal::Overlay(layer.to_owned()),
            ));
        }
    }
    Ok(())
}

/// Refuses a directory below a target path, if that target path matches only as a whole.
pub(super) fn refuse_below(
    path: &TargetPath,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<(), MatchError> {
    let Some(targets) = node.non_csi_targets().filter(|it| !it.is_empty()) else {
        return Ok(());
    };
    let parents = path.ancestors().skip(1);
    let parents = parents.take_while(|(parent, _)| !contains_kubelet_dir(parent, config));
    let parents = parents.filter(|(parent, _)| targets.may_contain(parent));
    let Some(found) = find_nearest_staged(path, parents, |_, _| Ok(true), node)? else {
        return Ok(());
    };
    let target = found.matched_path;
    let [below, whole] = [path, &target].map(|path| node.identity(path.as_path()));
    let mount = |found: Option<FileIdentity>| found.map(|found| found.mount);
    let reason = match (mount(below?), mount(whole?)) {
        (Some(below), Some(whole)) if below != whole => IndirectRefusal::OtherMount { target },
        _ => IndirectRefusal::Below { target },
    };
    Err(refusal(&found.volume, path.as_path(), reason))
}

/// Finds a volume if the source leads by another path to the volume's directory or to a directory below it.
fn find_directory(
    source: &IdentifiedSource<'_>,
    targets: &NonCsiTargets,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let IdentifiedSource { path, identity } = source;
    for target in targets.same_directory(identity, node) {
        if let Some(volume) = super::find_staged(target, node)? {
            return Ok(Some(indirect_match(volume, PathBuf::new(), path, node)?));
        }
    }
    let may_be_csi = node.is_indexed(identity.device) && !is_decided_by_path(source, node);
    if !may_be_csi && !targets.may_hold(identity, node) {
        return Ok(None);
    }
    let Some(location) = node.locate(path.as_path())? else {
        return Ok(None);
    };
    if targets.is_unrelated(&location) {
        return Ok(None);
    }
    let mut paths = node.paths_to(&location);
    paths.retain(|other| other != *path);
    let mut nearest: Option<StagedVolume<'_>> = None;
    for other in &paths {
        let is_at_location = |path: &TargetPath, below: &Path| is_at(path, &location, below, node);
        let may_be_parent = parent_predicate(other, config);
        let candidates = other.ancestors().filter(|(parent, _)| {
            let is_non_csi =
                || targets.may_contain(parent) && !contains_kubelet_dir(parent, config);
            may_be_parent(parent) || is_non_csi()
        });
        let found = find_nearest_staged(other, candidates, is_at_location, node)?;
        let depth = |found: &StagedVolume<'_>| found.below.components().count();
        nearest = nearest.into_iter().chain(found).min_by_key(depth);
    }
    if let Some(found) = nearest {
        return match_at_or_below(source, &found, &location, config, node);
    }
    if config.unstaged == Unstaged::Refuse {
        for other in &paths {
            refuse_bare(other, &location, node)?;
        }
    }
    targets.remember_unrelated(location);
    Ok(None)
}

/// Returns whether `path` leads to the parent of `location` from which `below` leads to `location`. The paths come from
/// the mount table, and something may have been mounted over them since.
fn is_at(
    path: &TargetPath,
    location: &FsLocation,
    below: &Path,
    node: &impl NodeLookup,
) -> Result<bool, MatchError> {
    let found = node
        .locate_target(path)
        .map_err(|source| MatchError::VolumeLookup {
            volume: path.volume_name(),
            source,
        })?;
    let expected = location.path.ancestors().nth(below.components().count());
    Ok(found.is_some_and(|it| it.device == location.device && Some(&*it.path) == expected))
}

/// Refuses a bind of a CSI volume's bare directory, or of a directory below it: the volume's metadata may have been
/// lost.
fn refuse_bare(
    path: &TargetPath,
    location: &FsLocation,
    node: &impl NodeLookup,
) -> Result<(), MatchError> {
    let Some((directory, below)) = path.csi_directory() else {
        return Ok(());
    };
    if is_at(&directory, location, below, node)? {
        super::refuse_unstaged(path, node)?;
    }
    Ok(())
}

/// Returns whether the source's path alone shows that it isn't a CSI volume's: the source is on the mount of the root
/// directory or of a kubelet's directory, and not the root of that mount. A path of CSI form for which nothing is
/// staged can still be a second path of a volume, since a kubelet's directory can be a bind mount.
fn is_decided_by_path(source: &IdentifiedSource<'_>, node: &impl NodeLookup) -> bool {
    let IdentifiedSource { path, identity } = source;
    !identity.is_mount_root
        && path.csi_volume().is_none()
        && node.is_root_or_kubelet_mount(identity.mount)
}

/// Matches or refuses a source whose location is at or below the location of a staged target path.
fn match_at_or_below(
    source: &IdentifiedSource<'_>,
    found: &StagedVolume<'_>,
    location: &FsLocation,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<Match>, MatchError> {
    let path = source.path;
    let target = found.matched_path.clone();
    let is_whole = found.below.as_os_str().is_empty();
    let matches_below =
        target.csi_volume().is_some() || is_below_match_root(target.as_path(), config);
    let reason = if location.is_deleted {
        let location = location.clone();
        IndirectRefusal::Removed { target, location }
    } else if !is_whole && !matches_below {
        IndirectRefusal::Below { target }
    } else {
        let (volume, subpath) = (found.volume.clone(), found.below.to_owned());
        return Ok(Some(indirect_match(volume, subpath, path, node)?));
    };
    Err(refusal(&found.volume, path.as_path(), reason))
}

fn indirect_match(
    volume: TargetPath,
    subpath: PathBuf,
    path: &TargetPath,
    node: &impl NodeLookup,
) -> Result<Match, MatchError> {
    // If the file system that holds the target path is read-only too, the bind's flag says nothing about the volume.
    let read_only = node.is_read_only(path.as_path())? && !node.is_read_only(volume.as_path())?;
    Ok(Match {
        volume,
        subpath,
        read_only,
        by: MatchedBy::Bind,
        resolved: None,
    })
}

fn refusal(volume: &TargetPath, path: &Path, reason: IndirectRefusal) -> MatchError {
    MatchError::Indirect {
        volume: volume.volume_name(),
        path: path.display().to_string(),
        reason,
    }
}

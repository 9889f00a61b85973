//! Sources that lead to a volume by another path than its target path: an engine has bound the directory
//! elsewhere first, or made it a layer of an overlay. If such a source were passed on as it is, the
//! workload would write to the node's disk.
//!
//! | engine | what it hands on |
//! |---|---|
//! | buildah, any volume | a bind below its own directory, `buildah-bind-target-N` |
//! | podman, docker: a named volume with `type=none,o=bind` | the volume's `_data`, a bind |
//! | podman `kube play` and docker with a subPath of a volume | a bind of the subdirectory |
//! | podman and buildah, `:O`; a named volume of type overlay | an overlay |

use std::path::{Path, PathBuf};

use crust_mount::place::{Identity, Place};
use crust_state::{Config, TargetPath};

use super::{By, Match, MatchError, Node, matches_below};

/// The reason why a source that leads to a volume can't be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Why {
    #[error(
        "leads to a directory below its target path {target}, which is a subPath of the volume only \
         where match_roots says so; hint: set match_roots = [{:?}] in runcrust's configuration, or \
         mount {target} as a whole",
        parent(target)
    )]
    Below { target: TargetPath },
    #[error(
        "is a bind mount of {}, which has been removed since; hint: unmount it, or let the engine \
         make its volume again", .0.path.display()
    )]
    Removed(Place),
    #[error(
        "is an overlay with {} as one of its directories, and an overlay of a volume isn't \
         supported: the volume's files aren't in that directory; hint: mount the volume itself, \
         without the option O or a volume of type overlay", .0.display()
    )]
    Overlay(PathBuf),
}

fn parent(target: &TargetPath) -> &Path {
    target.as_path().parent().unwrap_or(target.as_path())
}

/// Finds the volume that a source leads to although neither its path nor that of a parent is where the
/// volume is staged. `stacked` is the number of overlays that the source may lead through.
pub(super) fn find(
    spellings: &[&TargetPath],
    stacked: usize,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    // A kubelet's bind of a subPath was looked up already, and a directory that holds a kubelet's
    // directory belongs to no single volume.
    let is_settled = |path: &&TargetPath| {
        let mut above = config.kubelet_dirs.iter();
        path.subpath_bind().is_some() || above.any(|dir| dir.starts_with(path.as_path()))
    };
    let Some(last) = spellings.last() else {
        return Ok(None);
    };
    if spellings.iter().any(is_settled) {
        return Ok(None);
    }
    for path in spellings {
        refuse_below(path, config, node)?;
    }
    let Some(source) = node.identity(last.as_path()) else {
        return Ok(None);
    };
    if let Some(found) = find_mounted(last, &source, config, node)? {
        return Ok(Some(found));
    }
    if stacked > 0 && is_on_overlay(last.as_path(), &source, node) {
        let layers = node.overlay_layers(last.as_path());
        let layers = layers.map_err(|source| MatchError::Mounts {
            volume: last.volume_name(),
            source,
        })?;
        refuse_layers(last.as_path(), &layers, stacked - 1, config, node)?;
    }
    Ok(None)
}

/// The number of overlays that the kernel stacks (`FILESYSTEM_MAX_STACK_DEPTH` of `linux/fs.h`). Without a limit
/// the lookup of an overlay over its own mount point, as systemd-sysext makes one on `/usr`, would never end.
pub(super) const MOST_STACKED: usize = 2;

/// Whether a source is on an overlay that somebody mounted, and not on that of the root directory or of a
/// kubelet's, whose volumes are found by path.
fn is_on_overlay(path: &Path, source: &Identity, node: &impl Node) -> bool {
    // An overlay has no block device.
    source.device.major() == 0
        && node.is_overlay(path)
        && (source.is_mount_root || !node.is_usual_mount(source.mount))
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
            return Err(refused(&found.volume, path, Why::Overlay(layer.to_owned())));
        }
    }
    Ok(())
}

/// Refuses a directory below a target path that the lookup of its parents doesn't reach.
fn refuse_below(path: &TargetPath, config: &Config, node: &impl Node) -> Result<(), MatchError> {
    for target in node.targets_elsewhere() {
        let holds_kubelet = |dir: &PathBuf| dir.starts_with(target.as_path());
        if !path.as_path().starts_with(target.as_path())
            || *path == target
            || config.kubelet_dirs.iter().any(holds_kubelet)
        {
            continue;
        }
        if let Some(target) = staged(&target, node)? {
            let why = Why::Below {
                target: target.clone(),
            };
            return Err(refused(&target, path.as_path(), why));
        }
    }
    Ok(())
}

/// Finds the volume whose directory, or a directory of it, is the source by another mount.
fn find_mounted(
    path: &TargetPath,
    source: &Identity,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    if !node.holds_targets(source.device) {
        return Ok(None);
    }
    // By the mount of the root, or of a kubelet's directory, the CSI volumes there were found by path.
    let is_usual = !source.is_mount_root && node.is_usual_mount(source.mount);
    if !is_usual && is_drivers_mount(path, node) {
        return Ok(None);
    }
    let targets = if is_usual {
        node.targets_elsewhere()
    } else {
        node.all_staged()?
    };
    let mut others = Vec::new();
    for target in targets {
        match node.target_identity(&target) {
            Some(found) if found.is_same_file(source) => {
                if let Some(volume) = staged(&target, node)? {
                    return Ok(Some(found_at(volume, PathBuf::new(), path, node)));
                }
            }
            // By one mount, paths tell what is below what.
            Some(found) if found.mount == source.mount && !source.is_mount_root => {}
            Some(found) if found.device != source.device => {}
            _ => others.push(target),
        }
    }
    let Some((target, place, subpath)) = find_below(path, &others, node)? else {
        return Ok(None);
    };
    let Some(volume) = staged(target, node)? else {
        return Ok(None);
    };
    if place.deleted {
        return Err(refused(&volume, path.as_path(), Why::Removed(place)));
    }
    if !subpath.as_os_str().is_empty() && !matches_below(target, config) {
        let target = target.clone();
        return Err(refused(&volume, path.as_path(), Why::Below { target }));
    }
    Ok(Some(found_at(volume, subpath, path, node)))
}

/// Whether the path is of a CSI volume that its driver mounted, as without deferral.
fn is_drivers_mount(path: &TargetPath, node: &impl Node) -> bool {
    let volume = path.csi_volume();
    let found = volume.and_then(|volume| node.identity(volume.directory()));
    found.is_some_and(|found| found.is_mount_root)
}

/// Finds the target whose directory holds the source, by what is mounted where: which one, where the
/// source is in its file system, and where below the target.
fn find_below<'t>(
    path: &TargetPath,
    targets: &'t [TargetPath],
    node: &impl Node,
) -> Result<Option<(&'t TargetPath, Place, PathBuf)>, MatchError> {
    if targets.is_empty() {
        return Ok(None);
    }
    let failed = |source| MatchError::Mounts {
        volume: path.volume_name(),
        source,
    };
    let places = node.places(&[path.as_path()]).map_err(failed)?;
    let [Some(source)] = &places[..] else {
        return Ok(None);
    };
    let places = node.target_places(targets).map_err(failed)?;
    for (target, place) in targets.iter().zip(places) {
        if let Some(subpath) = place.and_then(|place| source.below(&place).map(Path::to_owned)) {
            return Ok(Some((target, source.clone(), subpath)));
        }
    }
    Ok(None)
}

fn found_at(volume: TargetPath, subpath: PathBuf, path: &TargetPath, node: &impl Node) -> Match {
    // The node's own file system may be read-only, which says nothing of the volume.
    let read_only = node.is_read_only(path.as_path()) && !node.is_read_only(volume.as_path());
    Match {
        volume,
        subpath,
        read_only,
        by: By::Bind,
        resolved: None,
    }
}

fn refused(volume: &TargetPath, path: &Path, why: Why) -> MatchError {
    MatchError::Alias {
        volume: volume.volume_name(),
        path: path.display().to_string(),
        why,
    }
}

fn staged(target: &TargetPath, node: &impl Node) -> Result<Option<TargetPath>, MatchError> {
    node.staged(target).map_err(|source| MatchError::Entry {
        volume: target.volume_name(),
        source,
    })
}

#[cfg(test)]
mod tests;

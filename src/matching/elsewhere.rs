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
//! A source is compared with target paths in three ways, and the first that answers counts: by its path (is a
//! target path above it?), by its identity (is it a target path's directory?), and by its place in its file
//! system (is it below a target path's directory?). The nearest target path wins.

use std::path::{Path, PathBuf};

use crust_mount::identity::Identity;
use crust_mount::place::Place;
use crust_state::{Config, TargetPath};

use super::tables::{Table, Tables};
use super::{By, Match, MatchError, Node, matches_below};

/// The reason why a source that leads to a volume can't be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Why {
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
    spellings: &[&TargetPath],
    identity: Option<Identity>,
    stacked: usize,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let (Some(tables), Some(path)) = (node.tables(), spellings.last()) else {
        return Ok(None);
    };
    // A directory that holds a kubelet's directory belongs to no single volume.
    if spellings.iter().any(|path| holds_kubelet(path, config)) {
        return Ok(None);
    }
    let elsewhere = tables.elsewhere(node)?;
    for path in spellings {
        refuse_below(path, elsewhere, config, node)?;
    }
    let identity = match identity {
        None => node.identity(path.as_path())?,
        known => known,
    };
    let Some(identity) = identity else {
        return Ok(None);
    };
    let source = Source { path, identity };
    if let Some(found) = find_mounted(&source, tables, config, node)? {
        return Ok(Some(found));
    }
    if stacked > 0 && may_be_on_overlay(&source.identity, node) {
        let layers = node.overlay_layers(path.as_path(), source.identity.mount)?;
        refuse_layers(path.as_path(), &layers, stacked - 1, config, node)?;
    }
    Ok(None)
}

fn holds_kubelet(path: &TargetPath, config: &Config) -> bool {
    let mut kubelets = config.kubelet_dirs.iter();
    kubelets.any(|dir| dir.starts_with(path.as_path()))
}

/// The number of overlays that the kernel stacks (`FILESYSTEM_MAX_STACK_DEPTH` of `linux/fs.h`). Without a limit
/// the lookup of an overlay over its own mount point, as systemd-sysext makes one on `/usr`, would never end.
pub(super) const MOST_STACKED: usize = 2;

/// Whether a source may be on an overlay that somebody mounted, and not on that of the root directory or of a
/// kubelet's, whose volumes are found by path. An overlay has no block device, but a file on it can have that of
/// a layer (the kernel's `Documentation/filesystems/overlayfs.rst`, "Inode properties").
fn may_be_on_overlay(source: &Identity, node: &impl Node) -> bool {
    (source.is_mount_root || !node.is_usual_mount(source.mount))
        && (source.device.major() == 0 || !source.is_directory)
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
fn refuse_below(
    path: &TargetPath,
    elsewhere: &Table,
    config: &Config,
    node: &impl Node,
) -> Result<(), MatchError> {
    for target in elsewhere.above(path) {
        if holds_kubelet(&target, config) {
            return Ok(());
        }
        if let Some(volume) = staged(&target, node)? {
            let [below, whole] = [path, &target].map(|path| node.identity(path.as_path()));
            let mount = |found: Option<Identity>| found.map(|found| found.mount);
            let why = match (mount(below?), mount(whole?)) {
                (Some(below), Some(whole)) if below != whole => Why::OtherMount { target },
                _ => Why::Below { target },
            };
            return Err(refused(&volume, path.as_path(), why));
        }
    }
    Ok(())
}

/// Finds the volume whose directory, or a directory of it, is the source by another mount.
fn find_mounted(
    source: &Source<'_>,
    tables: &Tables,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let Source { path, identity } = source;
    if !tables.are_on(identity.device, node)? {
        return Ok(None);
    }
    let mut searched = vec![tables.elsewhere(node)?];
    if !is_told_by_path(source, node) {
        searched.push(tables.others(node)?);
    }
    for table in &searched {
        for target in table.same_file(identity, node)? {
            if let Some(volume) = staged(target, node)? {
                return Ok(Some(found_at(volume, PathBuf::new(), path, node)?));
            }
        }
    }
    let mut is_worth = false;
    for table in &searched {
        is_worth = is_worth || table.may_hold(identity, node)?;
    }
    if !is_worth {
        return Ok(None);
    }
    let Some(place) = node.place(path.as_path())? else {
        return Ok(None);
    };
    for part in place.path.ancestors() {
        for table in &searched {
            for target in table.at((place.device, part), identity, node)? {
                if let Some(volume) = staged(target, node)? {
                    let subpath = place.path.strip_prefix(part).unwrap_or(Path::new(""));
                    return found_below(source, (target, volume), subpath, &place, config, node);
                }
            }
        }
    }
    Ok(None)
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
    (target, volume): (&TargetPath, TargetPath),
    subpath: &Path,
    place: &Place,
    config: &Config,
    node: &impl Node,
) -> Result<Option<Match>, MatchError> {
    let path = source.path;
    let why = if place.deleted {
        Why::Removed {
            target: target.clone(),
            place: place.clone(),
        }
    } else if !subpath.as_os_str().is_empty() && !matches_below(target, config) {
        Why::Below {
            target: target.clone(),
        }
    } else {
        return Ok(Some(found_at(volume, subpath.to_owned(), path, node)?));
    };
    Err(refused(&volume, path.as_path(), why))
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
        by: By::Bind,
        resolved: None,
    })
}

fn refused(volume: &TargetPath, path: &Path, why: Why) -> MatchError {
    MatchError::Elsewhere {
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

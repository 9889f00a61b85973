//! Stock kubelets, which know nothing of deferral, bind a subPath of a volume below
//! `…/pods/<uid>/volume-subpaths/<volume>/` before the runtime sees it. The bind of a deferred volume
//! shows a directory on the node's disk; what it is a bind *of* tells the volume and the subPath.

use std::path::Path;

use crust_blockfs::place::Place;
use crust_state::TargetPath;
use crust_state::target::SubpathBind;

use super::{Match, MatchError, MatchedBy, Node};

/// The reason why a bind can neither be resolved nor passed on: the workload would write to the node's disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "is a subPath of it by its name, but leads to nothing that is known; \
         hint: is kubelet's bind mounted there?"
    )]
    Unknown,
    #[error(
        "is a subPath of it by its name, but its directory {0}, by which that can be told, isn't \
         there; hint: stage the volume again"
    )]
    NoDirectory(TargetPath),
    #[error(
        "is a bind of {}, which has been removed since; hint: delete the pod, so that kubelet \
         binds it anew", .0.path.display()
    )]
    Deleted(Place),
    #[error(
        "is a subPath of it by its name, but leads to {} on device {}, which isn't in its directory \
         {}; hint: is kubelet's bind mounted there?", .0.path.display(), .0.device, .1
    )]
    Elsewhere(Place, TargetPath),
    #[error(
        "leads into its directory {0}, but is named after another one; hint: delete the pod, so \
         that kubelet binds it anew"
    )]
    OtherName(TargetPath),
}

/// The volume and the subPath that kubelet's bind at `path`, or above it, stands for. `None` where
/// the path is no such bind, or one of a volume that isn't staged.
pub(super) fn find(path: &TargetPath, node: &impl Node) -> Result<Option<Match>, MatchError> {
    let Some(bind) = path.subpath_bind() else {
        return Ok(None);
    };
    let named = bind.target();
    let mut staged = node.staged_in(&bind.csi_directory())?;
    let entry = node.staged(&named).map_err(|source| MatchError::Entry {
        volume: named.volume_name(),
        source,
    })?;
    // Its directory may be gone.
    staged.extend(entry.filter(|target| !staged.contains(target)));
    if staged.is_empty() {
        return Ok(None);
    }
    let source = place(node, &named, path.as_path())?;
    let directories = staged.iter();
    let directories = directories.map(|target| place(node, target, target.as_path()));
    let directories: Vec<Option<Place>> = directories.collect::<Result<_, _>>()?;
    let directories = directories.iter().map(Option::as_ref);
    let staged: Vec<Staged<'_>> = staged.iter().zip(directories).collect();
    decide(path, &bind, source.as_ref(), &staged)
}

/// A staged volume, and where its directory is.
type Staged<'a> = (&'a TargetPath, Option<&'a Place>);

/// Decides by where things are. The bind's name is kubelet's word for the volume: it says nothing of
/// what is mounted there now, and has to agree.
fn decide(
    path: &TargetPath,
    bind: &SubpathBind,
    source: Option<&Place>,
    staged: &[Staged<'_>],
) -> Result<Option<Match>, MatchError> {
    let refused = |volume: &TargetPath, why| {
        Err(MatchError::Subpath {
            volume: volume.volume_name(),
            path: path.to_string(),
            why,
        })
    };
    let is_named = |(target, _): &&Staged<'_>| {
        let volume = target.csi_volume();
        volume.is_some_and(|volume| volume.name == bind.volume())
    };
    let named = staged.iter().find(is_named).copied();
    let Some(place) = source else {
        return named.map_or(Ok(None), |(target, _)| refused(target, Refusal::Unknown));
    };
    if let Some((target, directory)) = named {
        let Some(directory) = directory else {
            return refused(target, Refusal::NoDirectory(target.clone()));
        };
        match place.below(directory) {
            Some(_) if place.deleted => return refused(target, Refusal::Deleted(place.clone())),
            Some(subpath) => {
                return Ok(Some(Match {
                    volume: target.clone(),
                    subpath: subpath.to_owned(),
                    by: MatchedBy::SubpathBind,
                    read_only: false,
                    resolved: None,
                }));
            }
            None => {}
        }
    }
    let holds =
        |(_, directory): &&Staged<'_>| directory.is_some_and(|it| place.below(it).is_some());
    match (staged.iter().find(holds), named) {
        (Some((other, _)), _) => refused(other, Refusal::OtherName((*other).clone())),
        (None, Some((target, _))) if place.deleted => {
            refused(target, Refusal::Deleted(place.clone()))
        }
        (None, Some((target, _))) => {
            refused(target, Refusal::Elsewhere(place.clone(), target.clone()))
        }
        (None, None) => Ok(None),
    }
}

/// The rule for lost metadata: a bind that leads into the directory of the CSI volume that it is
/// named after, which is bare.
pub(super) fn refuse_unstaged(path: &TargetPath, node: &impl Node) -> Result<(), MatchError> {
    let Some(bind) = path.subpath_bind() else {
        return Ok(());
    };
    let target = bind.target();
    let directory = target.as_path();
    if !node.is_bare_directory(directory)? {
        return Ok(());
    }
    // Most binds are of volumes that aren't CSI volumes: without the directory no mount table is read.
    let Some(directory) = place(node, &target, directory)? else {
        return Ok(());
    };
    let source = place(node, &target, path.as_path())?;
    if source.is_some_and(|source| source.below(&directory).is_some()) {
        return Err(MatchError::unstaged(
            &target.volume_name(),
            target.as_path(),
        ));
    }
    Ok(())
}

fn place(node: &impl Node, volume: &TargetPath, path: &Path) -> Result<Option<Place>, MatchError> {
    node.place(path).map_err(|source| MatchError::Place {
        volume: volume.volume_name(),
        source,
    })
}

//! Matches a stock kubelet's binds of subPaths. A kubelet that doesn't know about deferred volumes binds a subPath of a
//! volume below `…/pods/<uid>/volume-subpaths/<volume>/` before it calls the runtime. For a deferred volume the bind
//! shows a directory on the node's disk. The root of the bind identifies the volume and the subPath.

use std::path::Path;

use crust_blockfs::location::FsLocation;
use crust_state::TargetPath;
use crust_state::target::SubpathBind;

use super::{Match, MatchError, MatchedBy, NodeLookup};

/// The reason why a bind is refused. If it were passed through, the workload would write to the node's disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SubpathRefusal {
    #[error(
        "has the name of a bind mount of the volume's subPath, but doesn't exist, or is on a file system that \
         doesn't report locations; hint: recreate the pod, so that kubelet mounts the subPath again"
    )]
    Unknown,
    #[error(
        "has the name of a bind mount of the volume's subPath, but can't be checked, because the volume's directory \
         {0} doesn't exist; hint: recreate the pod, so that kubelet and the CSI driver create it again"
    )]
    NoDirectory(TargetPath),
    #[error(
        "is a bind mount of {}, which has been removed since; hint: recreate the pod, so that kubelet mounts the \
         subPath again", .0.path.display()
    )]
    Deleted(FsLocation),
    #[error(
        "has the name of a bind mount of the volume's subPath, but leads to {} on device {}, which isn't in the \
         volume's directory {}; hint: recreate the pod, so that kubelet mounts the subPath again",
        .0.path.display(), .0.device, .1
    )]
    OutsideDirectory(FsLocation, TargetPath),
    #[error(
        "leads into the volume's directory {0}, but is named after another volume; hint: recreate the pod, so that \
         kubelet mounts the subPath again"
    )]
    OtherName(TargetPath),
}

/// Returns the volume and the subPath that kubelet's bind at or above `path` shows. `None` if there is no such bind, or
/// if its volume isn't staged.
pub(super) fn find(path: &TargetPath, node: &impl NodeLookup) -> Result<Option<Match>, MatchError> {
    let Some(bind) = path.subpath_bind() else {
        return Ok(None);
    };
    let named = bind.target();
    let mut staged = node.staged_in(&bind.csi_directory())?;
    let entry = node.staged(&named).map_err(|source| MatchError::Entry {
        volume: named.volume_name(),
        source,
    })?;
    // If the named volume's directory is gone, the listing doesn't contain the volume.
    staged.extend(entry.filter(|target| !staged.contains(target)));
    if staged.is_empty() {
        return Ok(None);
    }
    let source = locate(node, &named, path.as_path())?;
    let directories = staged.iter();
    let directories = directories.map(|target| locate(node, target, target.as_path()));
    let directories: Vec<Option<FsLocation>> = directories.collect::<Result<_, _>>()?;
    let directories = directories.iter().map(Option::as_ref);
    let staged: Vec<StagedDirectory<'_>> = staged.iter().zip(directories).collect();
    decide(path, &bind, source.as_ref(), &staged)
}

/// The target path of a staged volume, and the location of its directory.
type StagedDirectory<'a> = (&'a TargetPath, Option<&'a FsLocation>);

/// Decides by the locations of the bind and of the staged volumes' directories. Kubelet named the bind after a volume,
/// but the name doesn't prove what is mounted there now. The bind is refused if name and location disagree.
fn decide(
    path: &TargetPath,
    bind: &SubpathBind,
    source: Option<&FsLocation>,
    staged: &[StagedDirectory<'_>],
) -> Result<Option<Match>, MatchError> {
    let refusal = |volume: &TargetPath, reason| {
        Err(MatchError::Subpath {
            volume: volume.volume_name(),
            path: path.to_string(),
            reason,
        })
    };
    let is_named = |(target, _): &&StagedDirectory<'_>| {
        let volume = target.csi_volume();
        volume.is_some_and(|volume| volume.name == bind.volume())
    };
    let named = staged.iter().find(is_named).copied();
    let Some(location) = source else {
        return named.map_or(Ok(None), |(target, _)| {
            refusal(target, SubpathRefusal::Unknown)
        });
    };
    if let Some((target, directory)) = named {
        let Some(directory) = directory else {
            return refusal(target, SubpathRefusal::NoDirectory(target.clone()));
        };
        match location.path_below(directory) {
            Some(_) if location.is_deleted => {
                return refusal(target, SubpathRefusal::Deleted(location.clone()));
            }
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
    let holds = |(_, directory): &&StagedDirectory<'_>| {
        directory.is_some_and(|it| location.path_below(it).is_some())
    };
    match (staged.iter().find(holds), named) {
        (Some((other, _)), _) => refusal(other, SubpathRefusal::OtherName((*other).clone())),
        (None, Some((target, _))) if location.is_deleted => {
            refusal(target, SubpathRefusal::Deleted(location.clone()))
        }
        (None, Some((target, _))) => refusal(
            target,
            SubpathRefusal::OutsideDirectory(location.clone(), target.clone()),
        ),
        (None, None) => Ok(None),
    }
}

/// Refuses a bind that leads into the bare directory of the CSI volume that it is named after: the volume's metadata
/// may have been lost.
pub(super) fn refuse_unstaged(path: &TargetPath, node: &impl NodeLookup) -> Result<(), MatchError> {
    let Some(bind) = path.subpath_bind() else {
        return Ok(());
    };
    let target = bind.target();
    let directory = target.as_path();
    if !node.is_bare_directory(directory)? {
        return Ok(());
    }
    // Most binds show volumes that aren't CSI volumes. For these the directory doesn't exist, and the mount table isn't
    // read.
    let Some(directory) = locate(node, &target, directory)? else {
        return Ok(());
    };
    let source = locate(node, &target, path.as_path())?;
    if source.is_some_and(|source| source.path_below(&directory).is_some()) {
        return Err(MatchError::unstaged(
            &target.volume_name(),
            target.as_path(),
        ));
    }
    Ok(())
}

fn locate(
    node: &impl NodeLookup,
    volume: &TargetPath,
    path: &Path,
) -> Result<Option<FsLocation>, MatchError> {
    node.locate(path)
        .map_err(|source| MatchError::VolumeLookup {
            volume: volume.volume_name(),
            source,
        })
}

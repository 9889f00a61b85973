//! Limits on staging for callers of a socket. Root at a command line may stage anything.

use std::path::PathBuf;

use crust_state::crust::{Amount, EntryError};
use crust_state::files::FileError;
use crust_state::target::TargetLookup;
use crust_state::{CrustDirectory, MountInfo, TargetPath, Volume};

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::stage;
use crate::bare::{self, Contents};

/// Takes room for the growth of the crust directory by a stage; a replacement grows only by its additional bytes.
/// Given the crust directory it may count the entries; otherwise it denies with [`Denied::Unknown`] rather than wait.
pub type Room<'a> = &'a (dyn Fn(Amount, Option<&CrustDirectory>) -> Result<(), Denied> + Sync);

/// A reason not to stage a volume for a caller of a socket.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// Callers of a socket may not stage at this target path.
    #[error(
        "target path {target} is neither <dir>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount with a \
         directory of `kubelet_dirs` ({kubelet_dirs}) nor below a directory of `match_roots` \
         ({match_roots}); hint: those two in /etc/runcrust/config.toml say what may be staged over the \
         socket: name kubelet's --root-dir in `kubelet_dirs`"
    )]
    Target {
        /// The path that was asked for.
        target: TargetPath,
        /// The directories of that setting, as a list in a sentence.
        kubelet_dirs: String,
        /// The directories of that setting, likewise.
        match_roots: String,
    },
    /// Something is mounted, or will be once somebody looks, at the target path.
    #[error(
        "target path {0} is a mount point, and what is mounted there would be hidden from the pod; hint: \
         findmnt {0} shows it; the CSI driver has to unmount it before it defers the mount"
    )]
    Mount(TargetPath),
    /// Files stand in the target directory.
    #[error(
        "target path {0} isn't an empty directory, and what stands there would be hidden from the pod; \
         hint: move it away, into the volume if it belongs there"
    )]
    Files(TargetPath),
    /// The target directory can't be read, or is too large to be looked through.
    #[error(
        "whether target path {0} is an empty directory can't be told; hint: look into it; only directories \
         without files are deferred volumes' target paths"
    )]
    Unclear(TargetPath),
    /// A limit on the number or size of staged volumes is reached.
    #[error(
        "{there} {unit} are staged, and `{setting}` allows {most}; hint: `runcrust crust list` shows what is \
         staged, `runcrust crust gc` removes what is stale; `{setting}` is in /etc/runcrust/crust_ops.toml"
    )]
    Full {
        /// `volumes` or `bytes`, as the sentence names them.
        unit: &'static str,
        /// The number of volumes staged, or of bytes with the new volume's.
        there: u64,
        /// The limit.
        most: u64,
        /// The key of the limit in `crust_ops.toml`.
        setting: &'static str,
    },
    /// The staged volumes can't be counted, and so nothing says whether a limit is reached.
    #[error("what is staged can't be counted, so no more is accepted over the socket: {0}")]
    Uncounted(#[source] FileError),
    /// It can't be told without a call that may wait for a disk.
    #[error("it can't be told at once")]
    Unknown,
}

/// Checks what another program is about to stage for a caller of a socket, as [`stage`](super::stage()) checks
/// what it stages for one. Only a volume that is staged already with content of the same meaning needs no check.
///
/// A device that can't be opened is left for the other program to report.
pub fn admit(
    context: &Context<'_>,
    target: &TargetPath,
    info: &MountInfo,
    room: Room<'_>,
) -> Result<(), VolumeError> {
    let asked = target;
    let target = &context.as_given(asked);
    let admitted = || -> Result<(), Cause> {
        let there = context.crust.volume(target);
        if stage::is_staged_as(context, &there, info)? {
            return Ok(());
        }
        let look = target.look();
        check_all(context, [&look, &asked.look()])?;
        Ok(take_room(context, room, &look, &there, info)?)
    };
    admitted().map_err(|cause| VolumeError::new(asked, cause))
}

/// Takes room for a stage, if it makes the crust directory grow.
pub(super) fn take_room(
    context: &Context<'_>,
    room: Room<'_>,
    look: &TargetLookup<'_>,
    there: &Result<Option<Volume>, EntryError>,
    info: &MountInfo,
) -> Result<(), Denied> {
    let growth = growth(look.entries(), there, info);
    if growth == Amount::default() {
        return Ok(());
    }
    room(growth, Some(context.crust))
}

/// Returns the growth of the crust directory by a stage: the volume's entries if it is new, and for each the difference
/// in size to the replaced content if the new one is longer.
fn growth(entries: u64, there: &Result<Option<Volume>, EntryError>, info: &MountInfo) -> Amount {
    let replaced = match there {
        Ok(Some(volume)) if !volume.is_kata_layout() => size(volume.info()),
        // Kata's layout isn't counted, and the size of an unreadable entry is unknown.
        _ => 0,
    };
    Amount {
        entries: if matches!(there, Ok(None)) {
            entries
        } else {
            0
        },
        bytes: entries * size(info).saturating_sub(replaced),
    }
}

/// Checks the target path of a volume, and the path that the caller gave: both have to be acceptable.
pub(super) fn check_all(
    context: &Context<'_>,
    looks: [&TargetLookup<'_>; 2],
) -> Result<(), Denied> {
    let [target, asked] = looks;
    check(context, target)?;
    if asked.path() == target.path() {
        return Ok(());
    }
    check(context, asked)
}

/// Checks the target path of what is about to be staged and isn't yet.
pub(super) fn check(context: &Context<'_>, look: &TargetLookup<'_>) -> Result<(), Denied> {
    let config = context.config;
    if !look.is_within(&config.kubelet_dirs, &config.match_roots) {
        return Err(Denied::Target {
            target: look.path().clone(),
            kubelet_dirs: listed(&config.kubelet_dirs),
            match_roots: listed(&config.match_roots),
        });
    }
    if look.is_plainly_missing() {
        return Ok(());
    }
    check_empty(look.path())
}

/// Whether the target path is known to be fine without a call that may wait: a directory's entries may have
/// to be read from its disk.
pub(super) fn is_fine_at_once(context: &Context<'_>, look: &TargetLookup<'_>) -> bool {
    let config = context.config;
    look.is_plainly_within(&config.kubelet_dirs, &config.match_roots) && look.is_plainly_missing()
}

fn check_empty(target: &TargetPath) -> Result<(), Denied> {
    match bare::contents(target.as_path()) {
        Contents::Bare => Ok(()),
        Contents::Mount => Err(Denied::Mount(target.clone())),
        Contents::Files => Err(Denied::Files(target.clone())),
        Contents::Unknown => Err(Denied::Unclear(target.clone())),
    }
}

fn listed(directories: &[PathBuf]) -> String {
    if directories.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = directories
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    shown.join(", ")
}

/// Returns the size of an entry's `mountInfo.json` file, in bytes.
pub(super) fn size(info: &MountInfo) -> u64 {
    info.to_json().len() as u64
}

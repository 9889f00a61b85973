//! The error of an operation on a volume, and the code that a caller gets.

mod denied;

use std::path::PathBuf;

use crust_blockfs::{DeviceNumber, DiskSeq};
use crust_state::TargetPath;
use crust_state::crust::EntryError;
use crust_state::files::FileError;
use crust_state::info::InfoError;
use crust_state::lock::LockError;
use crust_state::ownership::Conflict;
use crust_state::record::User;
use crust_state::state_directory::StateError;

use crate::propagated::LeftCopy;
use crate::sandbox::SandboxError;

use crust_blockfs::device::DeviceError;
use crust_blockfs::filesystem::MountError;
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::fstypes::GrowthError;
use crust_blockfs::mountinfo::MountInfoError;
use crust_blockfs::options::OptionsError;
use crust_blockfs::resize::ResizeError;
pub use denied::Denied;

/// A gRPC status code, by which callers of the CLI tell errors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// Nothing is staged at the target path.
    NotFound,
    /// The volume's state doesn't allow it now.
    FailedPrecondition,
    /// The request itself is wrong.
    InvalidArgument,
    /// No size meets the limits.
    OutOfRange,
    /// There is as much as there may be.
    ResourceExhausted,
    /// This version, or the file system, can't do it.
    Unimplemented,
    /// Everything else.
    Internal,
}

impl Code {
    /// The code's name, as gRPC spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "NOT_FOUND",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
        }
    }
}

/// The error of an operation on one volume.
#[derive(Debug, thiserror::Error)]
#[error("volume {volume}: {cause}")]
pub struct VolumeError {
    volume: String,
    cause: Box<Cause>,
}

impl VolumeError {
    pub(super) fn new(target: &TargetPath, cause: impl Into<Cause>) -> Self {
        Self {
            volume: target.volume_name(),
            cause: Box::new(cause.into()),
        }
    }

    pub(super) fn of_sandbox(id: &str, cause: impl Into<Cause>) -> Self {
        Self {
            volume: format!("of sandbox {id}"),
            cause: Box::new(cause.into()),
        }
    }

    /// Returns the code for a caller of the CLI.
    #[must_use]
    pub fn code(&self) -> Code {
        match &*self.cause {
            Cause::NotStaged(_) => Code::NotFound,
            Cause::InUse { .. }
            | Cause::Differs { .. }
            | Cause::NotInUse
            | Cause::ReadOnly
            | Cause::DeviceGone(_)
            | Cause::Moved { .. }
            | Cause::OtherDisk { .. }
            | Cause::Unrecorded { .. }
            | Cause::DeviceBusy { .. }
            | Cause::RivalBusy { .. }
            | Cause::Resize(ResizeError::Growth(GrowthError::Refused { .. }))
            | Cause::Conflict(_)
            | Cause::Denied(Denied::Mount(_) | Denied::Files(_) | Denied::Unclear(_))
            | Cause::Contended
            | Cause::StagedAnew
            | Cause::Entry(EntryError::OtherVolume { .. })
            | Cause::Lock(LockError::Held { .. }) => Code::FailedPrecondition,
            Cause::Info(_)
            | Cause::Device(
                DeviceError::Missing { .. }
                | DeviceError::Path { .. }
                | DeviceError::NotBlock { .. }
                | DeviceError::NotAbsolute { .. },
            )
            | Cause::Options(_)
            | Cause::Denied(Denied::Target { .. })
            | Cause::FileSystem { .. } => Code::InvalidArgument,
            Cause::Denied(Denied::Full { .. }) => Code::ResourceExhausted,
            Cause::Mount(error) if error.is_the_callers() => Code::InvalidArgument,
            Cause::Resize(ResizeError::Limits { .. }) => Code::OutOfRange,
            Cause::Unsupported(_)
            | Cause::Resize(ResizeError::Growth(GrowthError::Unsupported { .. })) => {
                Code::Unimplemented
            }
            _ => Code::Internal,
        }
    }
}

impl Cause {
    pub(super) fn in_use(user: &User) -> Self {
        Self::InUse {
            user: user.to_string(),
            noun: user.owner_noun(),
        }
    }
}

/// The cause of an error, without the volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    #[error("nothing is staged at {0}; hint: stage it first; is crust_ops running?")]
    NotStaged(TargetPath),
    #[error("{0} aren't supported by this version")]
    Unsupported(&'static str),
    #[error(
        "file system {fstype:?} isn't one of those allowed ({allowed}); hint: `fstypes` in runcrust's configuration lists them"
    )]
    FileSystem { fstype: String, allowed: String },
    #[error("it is in use by {user}; hint: end that {noun} first")]
    InUse { user: String, noun: &'static str },
    #[error(
        "it is in use by {user} as it was staged before, which differs in {}; hint: stage it as it was, \
         or end that {noun} first", .differences.join("; in ")
    )]
    Differs {
        user: String,
        noun: &'static str,
        differences: Vec<String>,
    },
    #[error(
        "it isn't mounted: no live sandbox or container has it; hint: retry once its pod, or a container with it, runs"
    )]
    NotInUse,
    #[error(
        "its file system is mounted read-only, and stays as large as it is; hint: stage it without the option ro, and with an access mode that writes, to grow it"
    )]
    ReadOnly,
    #[error(
        "device {0} is gone from this node; hint: attach it again, and end the pods or containers that use the volume"
    )]
    DeviceGone(DeviceNumber),
    #[error(
        "device {path} is {now} now, and the volume is in use from {then}; hint: end the pods or containers \
         that use it, and stage the volume again with the device that holds its data"
    )]
    Moved {
        path: String,
        now: DeviceNumber,
        then: DeviceNumber,
    },
    #[error(
        "device {device} isn't the disk that was staged: that was the kernel's {staged}, and this is its \
         {now}; hint: the device was detached, and another one has its name; the CSI driver has to \
         publish the volume again"
    )]
    OtherDisk {
        device: String,
        staged: DiskSeq,
        now: DiskSeq,
    },
    #[error(
        "device {device} is in use by somebody that runcrust has no record of; hint: is it mounted on the host, or does a process of an ended container still run? findmnt and lsblk show who holds it"
    )]
    DeviceBusy { device: String },
    #[error(
        "device {device} shows the same file as {rival}, which is in use: two file systems on one file destroy each other; hint: stage the volume with {rival}, or wait until it is free"
    )]
    RivalBusy { device: String, rival: String },
    #[error(
        "it was mounted on the host too, at {}, because its place in the container is on a mount \
         that is shared with the host; hint: mount the volume elsewhere", place.display()
    )]
    Propagated { place: PathBuf },
    #[error(
        "it is mounted on the host too, at {0}, because its place in the container is on a mount that \
         is shared with the host, and it can't be unmounted: {1}; hint: unmount {0} by hand, and before \
         that what is mounted on it or hides it, which findmnt shows; mount the volume elsewhere",
        .copy.place.display(), .copy.reason
    )]
    LeftOnHost { copy: LeftCopy },
    #[error(
        "its device was mounted at {} while the container was being created, and not by this \
         container; that mount was left alone; hint: create the container again, as kubelet does by \
         itself", place.display()
    )]
    Appeared { place: PathBuf },
    #[error(
        "container {0} isn't among its users, although its create prepared it; hint: create the container again"
    )]
    NotPending(String),
    #[error(
        "container {id} exists already, its process is {pid}; hint: delete it first, or use another id"
    )]
    Exists { id: String, pid: i32 },
    #[error(
        "it is mounted in the pod's sandbox with {shown}, by nobody on record, and staged as {staged} by now; hint: let the pod be made anew"
    )]
    Unrecorded { shown: String, staged: String },
    #[error(
        "it was staged anew, and not as before, while its container was being created; hint: create the \
         container again, as kubelet does by itself"
    )]
    StagedAnew,
    #[error(
        "other calls stage or unstage it by other paths all the time, and this one didn't get its turn; hint: \
         try again"
    )]
    Contended,
    #[error("process {pid}: {source}")]
    Process { pid: i32, source: std::io::Error },
    #[error("{call}: {}", crust_blockfs::errno::Name(*errno))]
    Call {
        call: String,
        errno: rustix::io::Errno,
    },
    #[error("mountInfo: {0}")]
    Info(#[from] InfoError),
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error(transparent)]
    Entry(#[from] EntryError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Conflict(#[from] Conflict),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    FsGroup(#[from] FsGroupError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Resize(#[from] ResizeError),
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
}

#[cfg(test)]
mod tests {
    use crust_state::Process;
    use crust_state::record::UserKind;

    use super::*;

    /// A container in this sandbox, or in none where that is itself.
    fn user(sandbox: &str) -> User {
        User {
            kind: UserKind::Container,
            id: "c".into(),
            sandbox: sandbox.into(),
            pod_uid: "p".into(),
            process: Process {
                pid: 1,
                start_time: 1,
                boot_id: String::new(),
                pid_namespace: None,
            },
            mounts: Vec::new(),
            others: Vec::new(),
        }
    }

    #[test]
    fn who_is_to_be_ended_is_a_pod_only_where_there_is_one() {
        for (sandbox, expected) in [
            (
                "s",
                "it is in use by container c of pod p (sandbox s); hint: end that pod first",
            ),
            (
                "c",
                "it is in use by container c; hint: end that container first",
            ),
        ] {
            assert_eq!(Cause::in_use(&user(sandbox)).to_string(), expected);
        }
    }

    #[test]
    fn what_ends_with_the_pod_is_a_matter_of_state() {
        let (now, then) = ("7:1".parse().unwrap(), "7:2".parse().unwrap());
        let moved = Cause::Moved {
            path: "/dev/a".into(),
            now,
            then,
        };
        let unrecorded = Cause::Unrecorded {
            shown: "ext4 (rw)".into(),
            staged: "ext4 (ro)".into(),
        };
        let other = Cause::OtherDisk {
            device: "/dev/a".into(),
            staged: "7".parse().unwrap(),
            now: "8".parse().unwrap(),
        };
        for cause in [moved, other, unrecorded] {
            let error = VolumeError::new(&TargetPath::new("/t").unwrap(), cause);
            assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        }
    }
}

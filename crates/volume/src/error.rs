//! Errors of operations on volumes, and their gRPC status codes.

mod staging_error;

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
use rustix::io::Errno;

use crate::privileges::PrivilegesError;
use crate::propagated_mounts::RemainingCopy;
use crate::sandbox::SandboxError;

use crust_blockfs::device::DeviceError;
use crust_blockfs::filesystem::MountError;
use crust_blockfs::fsgroup::FsGroupError;
use crust_blockfs::fstypes::GrowthError;
use crust_blockfs::mountinfo::MountInfoError;
use crust_blockfs::options::OptionsError;
use crust_blockfs::resize::ResizeError;
use crust_nfs::Share;
use crust_nfs::error::ShareMountError;
use crust_nfs::options::ShareOptionError;
pub use staging_error::StagingError;

/// A gRPC status code, by which callers of the CLI distinguish errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrpcCode {
    /// Nothing is staged at the target path.
    NotFound,
    /// The volume's state doesn't allow the operation now.
    FailedPrecondition,
    /// The request is invalid, whatever the volume's state.
    InvalidArgument,
    /// No possible size is within the requested limits.
    OutOfRange,
    /// A limit on the number or size of staged volumes is reached.
    ResourceExhausted,
    /// This version or the file system doesn't support the operation.
    Unimplemented,
    /// Any other error.
    Internal,
}

impl GrpcCode {
    /// Returns the code's name as gRPC spells it, such as `NOT_FOUND`.
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

    pub(super) fn for_sandbox(id: &str, cause: impl Into<Cause>) -> Self {
        Self {
            volume: format!("of sandbox {id}"),
            cause: Box::new(cause.into()),
        }
    }

    #[must_use]
    pub fn code(&self) -> GrpcCode {
        match &*self.cause {
            Cause::NotStaged(_) => GrpcCode::NotFound,
            Cause::InUse { .. }
            | Cause::Differs { .. }
            | Cause::NotInUse
            | Cause::ReadOnly
            | Cause::DeviceGone(_)
            | Cause::DevicePathMoved { .. }
            | Cause::OtherDisk { .. }
            | Cause::Unrecorded { .. }
            | Cause::DeviceBusy { .. }
            | Cause::RivalBusy { .. }
            | Cause::Resize(ResizeError::Growth(GrowthError::Refused { .. }))
            | Cause::Conflict(_)
            | Cause::Staging(
                StagingError::TargetIsMountPoint(_)
                | StagingError::TargetNotEmpty(_)
                | StagingError::TargetUnreadable(_),
            )
            | Cause::RefusedFsGroup { .. }
            | Cause::Contended
            | Cause::Restaged
            | Cause::Entry(EntryError::OtherVolume { .. })
            | Cause::Lock(LockError::Held { .. }) => GrpcCode::FailedPrecondition,
            Cause::Info(_)
            | Cause::Device(
                DeviceError::Missing { .. }
                | DeviceError::Path { .. }
                | DeviceError::NotBlock { .. }
                | DeviceError::NotAbsolute { .. },
            )
            | Cause::Options(_)
            | Cause::ShareOption(_)
            | Cause::Staging(StagingError::TargetNotAllowed { .. })
            | Cause::FileSystem { .. } => GrpcCode::InvalidArgument,
            Cause::Staging(StagingError::LimitReached { .. }) => GrpcCode::ResourceExhausted,
            Cause::Mount(error) if error.is_request_error() => GrpcCode::InvalidArgument,
            Cause::ShareMount(error) if error.is_request_error() => GrpcCode::InvalidArgument,
            Cause::Resize(ResizeError::UnreachableSize { .. }) => GrpcCode::OutOfRange,
            Cause::NoGrowth
            | Cause::ShareMount(ShareMountError::NoClient { .. })
            | Cause::Resize(ResizeError::Growth(GrowthError::Unsupported { .. })) => {
                GrpcCode::Unimplemented
            }
            _ => GrpcCode::Internal,
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
    #[error("nothing is staged at {0}; hint: stage it first, and check that crust_ops is running")]
    NotStaged(TargetPath),
    /// The volume is a share.
    #[error(
        "a share of a file server can't be grown from a node; hint: raise the limit on the server"
    )]
    NoGrowth,
    #[error(
        "file system {fstype:?} isn't one of those allowed ({allowed}); hint: use one of these, or add {fstype} to \
         `fstypes` in runcrust's configuration"
    )]
    FileSystem { fstype: String, allowed: String },
    #[error("it is in use by {user}; hint: stop that {noun} first")]
    InUse { user: String, noun: &'static str },
    #[error(
        "it is in use by {user} with other properties than requested: {}; hint: stage it with the same properties, \
         or stop that {noun} first", .differences.join("; ")
    )]
    Differs {
        user: String,
        noun: &'static str,
        differences: Vec<String>,
    },
    #[error(
        "it isn't mounted: no live sandbox or container uses it; hint: retry once a pod or container that uses it runs"
    )]
    NotInUse,
    #[error(
        "its file system is mounted read-only and can't be grown; hint: stage it without the option ro, and with an \
         access mode that permits writing"
    )]
    ReadOnly,
    #[error(
        "device {0} is gone from this node; hint: stop the pods and containers that use the volume, and attach the \
         device again"
    )]
    DeviceGone(DeviceNumber),
    #[error(
        "device path {path} leads to device {now} now, but the volume is in use on device {mounted}; hint: stop the \
         pods and containers that use the volume, and stage it again with the device that holds its data"
    )]
    DevicePathMoved {
        path: String,
        now: DeviceNumber,
        mounted: DeviceNumber,
    },
    #[error(
        "device {device} isn't the disk that was staged: the staged disk had the sequence number {staged}, this one \
         has {now}; hint: stage the volume again, or delete the pod so that its CSI driver does; the device was \
         detached, and another disk has its name"
    )]
    OtherDisk {
        device: String,
        staged: DiskSeq,
        now: DiskSeq,
    },
    #[error(
        "device {device} is in use by a user that runcrust has no record of; hint: find the \
         user with findmnt and lsblk, such as a mount on the host or a process of a container that has ended"
    )]
    DeviceBusy { device: String },
    #[error(
        "device {device} has the same backing file as {rival}, which is in use: two file systems on one file destroy \
         each other; hint: stage the volume with {rival}, or wait until it is free"
    )]
    RivalBusy { device: String, rival: String },
    #[error(
        "it was mounted on the host too, at {}, because its mount point in the container is on a mount \
         that is shared with the host; hint: mount the volume elsewhere", mount_point.display()
    )]
    Propagated { mount_point: PathBuf },
    #[error(
        "it is mounted on the host too, at {0}, because its mount point in the container is on a mount that \
         is shared with the host, and it can't be unmounted: {1}; hint: find the mounts on it or over it with findmnt, \
         unmount them and then {0} by hand, and mount the volume elsewhere",
        .copy.mount_point.display(), .copy.reason
    )]
    LeftOnHost { copy: RemainingCopy },
    #[error(
        "its device was mounted at {} while the container was being created, and not by this \
         container; runcrust left that mount alone; hint: recreate the container; kubelet does so by \
         itself", mount_point.display()
    )]
    ForeignMount { mount_point: PathBuf },
    #[error(
        "container {0} isn't among its users, although its create recorded it as pending; hint: recreate the container"
    )]
    NotPending(String),
    #[error(
        "container {id} already exists with process {pid}; hint: delete it first, or use another id"
    )]
    Exists { id: String, pid: i32 },
    #[error(
        "it is mounted in the pod's sandbox as {mounted}, but has no record, and is staged as {staged} now; hint: \
         recreate the pod"
    )]
    Unrecorded { mounted: String, staged: String },
    #[error(
        "it was staged again with other properties while its container was being created; hint: recreate the \
         container; kubelet does so by itself"
    )]
    Restaged,
    #[error(
        "other calls kept staging or unstaging it by other paths until the deadline; hint: retry"
    )]
    Contended,
    #[error("process {pid} can't be identified: {source}")]
    Process { pid: i32, source: std::io::Error },
    #[error("{call}: {}", crust_blockfs::errno::Name(*errno))]
    Call { call: String, errno: Errno },
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
    #[error(
        "standard input isn't a mount to hold; hint: only runcrust itself calls hold-mount, when it mounts a share"
    )]
    NoMountToHold,
    #[error("mountInfo: {0}")]
    Info(#[from] InfoError),
    #[error(transparent)]
    Staging(#[from] StagingError),
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
    #[error(
        "timeout: the server of {0} hasn't answered before the deadline; hint: check that the server runs and that no \
         firewall is in between; the mount is tried again with the container's next start"
    )]
    NoAnswerUntilDeadline(Share),
    #[error(
        "timeout: the server of {share} hasn't answered within {seconds} seconds; hint: check that the server runs and \
         that no firewall is in between; the mount is tried again with the container's next start"
    )]
    NoAnswer { share: Share, seconds: u64 },
    #[error("{call} on {share}: {}; hint: see the kernel's log (dmesg) on this node, and the server's log", crust_blockfs::errno::Name(*errno))]
    ShareFailed {
        share: Share,
        call: &'static str,
        errno: Errno,
    },
    #[error(
        "fsGroup {group}: the server of {share} refuses it: {error}; hint: if the server maps root to another user, export \
         the share with no_root_squash, or let the server own the files by the group and remove fsGroup from the pod; or \
         set refused_fs_group = \"report\" in runcrust's configuration"
    )]
    RefusedFsGroup {
        share: Share,
        group: u32,
        /// The failed call.
        error: String,
    },
    /// The hints of [`FsGroupError`] are those for a file system on a device.
    #[error("{share}: {}; hint: {}", error.problem(), share_hint(error))]
    ShareFsGroup { share: Share, error: FsGroupError },
    #[error(
        "the container still waits for the server after its requests were aborted; hint: restore the server, or restart \
         the node"
    )]
    NotAborted,
    #[error(transparent)]
    ShareOption(#[from] ShareOptionError),
    #[error(transparent)]
    ShareMount(#[from] ShareMountError),
    #[error(transparent)]
    FsGroup(#[from] FsGroupError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Resize(#[from] ResizeError),
    #[error(transparent)]
    Mounts(#[from] MountInfoError),
}

/// Returns the next step after fsGroup has failed on a share.
fn share_hint(error: &FsGroupError) -> &'static str {
    match error {
        FsGroupError::RepeatedEntries { .. } => {
            "directories on the server have several names, or list the same entries over and over: check the \
             server's file system"
        }
        FsGroupError::Call { errno, .. } => match *errno {
            Errno::STALE => {
                "the server has removed or replaced files during the walk, or is broken: the container's next start \
                 retries; see the server's log if that fails too"
            }
            Errno::LOOP => {
                "a directory on the server contains itself, or lists the same entries over and over: check the server's \
                 file system"
            }
            Errno::NOSPC | Errno::DQUOT => {
                "free space on the server, or raise the group's quota there"
            }
            Errno::ROFS => {
                "export the share read-write on the server, or use the volume with the mount option ro"
            }
            _ => "see the server's log, and the kernel's log (dmesg) on this node",
        },
        _ => "see runcrust's log",
    }
}

#[cfg(test)]
mod tests {
    use crust_state::Process;
    use crust_state::record::UserKind;

    use super::*;

    /// Returns container `c` in a sandbox. If `sandbox` is `c` too, the container has no sandbox.
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
            other_mounts: Vec::new(),
        }
    }

    #[test]
    fn the_hint_names_the_pod_if_the_container_has_one() {
        for (sandbox, expected) in [
            (
                "s",
                "it is in use by container c of pod p (sandbox s); hint: stop that pod first",
            ),
            (
                "c",
                "it is in use by container c; hint: stop that container first",
            ),
        ] {
            assert_eq!(Cause::in_use(&user(sandbox)).to_string(), expected);
        }
    }

    #[test]
    fn a_file_name_on_a_share_hides_no_part_of_the_error() {
        let error = FsGroupError::Call {
            call: "openat2",
            path: "a; hint: b".into(),
            errno: Errno::IO,
        };
        let share = "srv:/export".parse().unwrap();
        let message = Cause::ShareFsGroup { share, error }.to_string();
        assert!(
            message.contains("EIO; hint: see the server's log"),
            "{message}"
        );
    }

    #[test]
    fn fs_group_on_a_share_has_hints_for_the_server() {
        let call = |errno| FsGroupError::Call {
            call: "getdents64",
            path: "a".into(),
            errno,
        };
        let repeated = FsGroupError::RepeatedEntries {
            listed: 9,
            distinct: 1,
        };
        for (error, start, hint) in [
            (
                call(Errno::IO),
                "fsGroup: getdents64(\"a\"): EIO; ",
                "see the server's log",
            ),
            (
                call(Errno::LOOP),
                "fsGroup: getdents64(\"a\"): ELOOP; ",
                "contains itself",
            ),
            (
                call(Errno::STALE),
                "fsGroup: getdents64(\"a\"): ESTALE; ",
                "next start",
            ),
            (
                call(Errno::DQUOT),
                "fsGroup: getdents64(\"a\"): EDQUOT; ",
                "quota there",
            ),
            (
                repeated,
                "fsGroup: stopped after 9 entries",
                "several names, or list the same entries",
            ),
        ] {
            let share = "srv:/export".parse().unwrap();
            let message = Cause::ShareFsGroup { share, error }.to_string();
            assert!(
                message.starts_with(&format!("srv:/export: {start}")),
                "{message}"
            );
            assert!(message.contains(hint), "{message}");
            assert_eq!(message.matches("hint: ").count(), 1, "{message}");
            assert!(!message.contains("e2fsck"), "{message}");
        }
    }

    #[test]
    fn conflicts_with_other_disks_are_failed_preconditions() {
        let (now, mounted) = ("7:1".parse().unwrap(), "7:2".parse().unwrap());
        let moved = Cause::DevicePathMoved {
            path: "/dev/a".into(),
            now,
            mounted,
        };
        let unrecorded = Cause::Unrecorded {
            mounted: "ext4 (rw)".into(),
            staged: "ext4 (ro)".into(),
        };
        let other = Cause::OtherDisk {
            device: "/dev/a".into(),
            staged: "7".parse().unwrap(),
            now: "8".parse().unwrap(),
        };
        for cause in [moved, other, unrecorded] {
            let error = VolumeError::new(&TargetPath::new("/t").unwrap(), cause);
            assert_eq!(error.code(), GrpcCode::FailedPrecondition, "{error}");
        }
    }
}

//! Checks the health of a mounted file system, and describes what is wrong with a volume (CSI's `VolumeCondition`).

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use crust_blockfs::DeviceNumber;
use crust_blockfs::device::Device;
use crust_blockfs::errno::Name;
use crust_blockfs::fstypes;
use crust_blockfs::mountinfo::Mount;
use crust_blockfs::probe;
use crust_blockfs::usage::UsageError;
use crust_nfs::Share;
use crust_state::TargetPath;
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use super::volume_mounts::open_directory_or_file;

/// CSI's `VolumeCondition`.
#[derive(Debug, PartialEq, Eq)]
pub struct VolumeCondition {
    /// Whether something is wrong with the volume.
    pub abnormal: bool,
    /// The problems and the next steps; empty if nothing is wrong.
    pub message: String,
}

/// Separator between an error and its hint.
const HINT: &str = "; hint: ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Symptom<'a> {
    CallFailed {
        call: &'static str,
        errno: Errno,
    },
    /// The kernel shut the file system down.
    ShutDown,
    /// The file system was mounted read-write and has become read-only.
    ReadOnly,
    /// The number of errors that the file system has recorded.
    Errors(u64),
    /// The error of a growth that was requested before the mount.
    NotGrown(&'a str),
    /// The target directory on the host holds files.
    HostFiles(&'a TargetPath),
    /// The server of a share hasn't answered in time.
    NoAnswer {
        share: &'a Share,
        timeout: Duration,
    },
    /// The server of a share has refused to set fsGroup.
    RefusedFsGroup {
        share: &'a Share,
        group: u32,
    },
    /// A call on a share failed.
    ShareFailed {
        share: &'a Share,
        call: &'static str,
        errno: Errno,
    },
}

/// A mount of a volume whose health is to be checked.
#[derive(Debug, Clone, Copy)]
pub struct HealthCheck<'a> {
    /// The root of the volume, or of the part of it that is mounted. `O_PATH` is enough.
    pub root: &'a OwnedFd,
    pub mount: &'a Mount,
    pub device: DeviceNumber,
    /// The file system type that the volume is mounted as.
    pub fstype: &'a str,
    /// Whether the superblock was mounted read-only.
    pub read_only: bool,
    /// The result of asking the file system for its usage.
    pub usage: Result<(), &'a UsageError>,
}

/// Checks the health of a mounted volume. Reads from the file system and the device.
#[must_use]
pub fn check_health(check: &HealthCheck<'_>) -> VolumeCondition {
    summarize(&symptoms(check), check.fstype)
}

pub(super) fn symptoms(check: &HealthCheck<'_>) -> Vec<Symptom<'static>> {
    let has = |option| check.mount.super_options.has(option);
    let mut symptoms = Vec::new();
    if has("shutdown") {
        symptoms.push(Symptom::ShutDown);
    } else if let Err((call, errno)) = check_access(check) {
        symptoms.push(Symptom::CallFailed { call, errno });
    }
    if (has("ro") || has("emergency_ro")) && !check.read_only && !is_always_read_only(check) {
        symptoms.push(Symptom::ReadOnly);
    }
    let errors = fstypes::find(check.fstype).map_or(0, |known| known.recorded_errors(check.device));
    if errors > 0 {
        symptoms.push(Symptom::Errors(errors));
    }
    symptoms
}

/// Returns true if the file system can't be mounted read-write at all. Reads the device.
fn is_always_read_only(check: &HealthCheck<'_>) -> bool {
    let device = Device::find_by_number(check.device).ok().flatten();
    device.is_some_and(|device| probe::is_always_read_only(&device.into(), check.fstype))
}

/// Checks whether the file system can still be used. statfs(2) alone isn't enough: an xfs that was shut down answers it
/// from memory, but fails to open anything.
fn check_access(check: &HealthCheck<'_>) -> Result<(), (&'static str, Errno)> {
    if let Err(UsageError::Statfs(errno)) = check.usage {
        return Err(("fstatfs", *errno));
    }
    check_reading(check.root)
}

/// Checks whether a mount's root can be opened and read.
pub(super) fn check_reading(root: &OwnedFd) -> Result<(), (&'static str, Errno)> {
    let root = match open_directory_or_file(root) {
        Ok(root) => root,
        // A container's subPath leads to a special file, or ids are mapped so that root doesn't own the volume's root.
        Err(Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
        Err(errno) => return Err(("open", errno)),
    };
    // Without O_NOATIME, the check would change the access time.
    if rustix::fs::fcntl_setfl(&root, OFlags::NOATIME).is_err() {
        return Ok(());
    }
    let mut buffer = [MaybeUninit::uninit(); 1024];
    match RawDir::new(&root, &mut buffer).next() {
        // ENOTDIR: the root is a regular file, and opening it was the check.
        Some(Err(errno)) if errno != Errno::NOTDIR => Err(("getdents64", errno)),
        _ => Ok(()),
    }
}

/// Builds the condition's message: all symptoms first, then the next steps.
pub(super) fn summarize(symptoms: &[Symptom<'_>], fstype: &str) -> VolumeCondition {
    let descriptions: Vec<String> = symptoms.iter().map(ToString::to_string).collect();
    let mut hints: Vec<String> = Vec::new();
    for symptom in symptoms {
        let hint = symptom.hint(fstype);
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    let message = if symptoms.is_empty() {
        String::new()
    } else {
        format!("{}{HINT}{}", descriptions.join("; "), hints.join("; "))
    };
    VolumeCondition {
        abnormal: !symptoms.is_empty(),
        message,
    }
}

impl Symptom<'_> {
    fn hint(&self, fstype: &str) -> String {
        match self {
            Self::CallFailed { .. } | Self::ShutDown | Self::ReadOnly | Self::Errors(_) => format!(
                "see the kernel's log, stop the pods and containers that use the volume, and run {} on its \
                 device before it is used again",
                fstypes::checker(fstype)
            ),
            Self::NotGrown(error) => {
                let hint = error.rsplit_once(HINT).map(|(_, hint)| hint);
                let hint = hint.unwrap_or("see runcrust's log");
                format!("{hint}; the next mount, and each resize, retries")
            }
            Self::NoAnswer { .. } => {
                "check that the server runs and that no firewall is in between; programs that use the volume wait \
                 until it answers, or get errors with the mount option soft"
                    .to_owned()
            }
            Self::RefusedFsGroup { .. } => {
                "let the server own the files by that group, or export the share with no_root_squash and recreate the pod"
                    .to_owned()
            }
            Self::ShareFailed {
                errno: Errno::STALE,
                ..
            } => "the exported directory was removed or replaced on the server: restore it, or export the new one and \
                  recreate the pods that use the volume"
                .to_owned(),
            Self::ShareFailed { .. } => {
                "see the kernel's log (dmesg) on this node, and the server's log".to_owned()
            }
            Self::HostFiles(_) => {
                "a pod used the volume under another runtime handler, or docker cp or podman cp wrote to the \
                 directory: move the files away, into the volume if they belong there"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Symptom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CallFailed { call, errno } => write!(
                f,
                "{call} on the file system fails with {}: it was shut down, or its device is gone",
                Name(*errno)
            ),
            Self::ShutDown => f.write_str("the file system was shut down after an error"),
            Self::ReadOnly => f.write_str("the file system has become read-only after an error"),
            Self::Errors(1) => f.write_str("the file system has recorded an error"),
            Self::Errors(count) => write!(f, "the file system has recorded {count} errors"),
            Self::NotGrown(error) => {
                let cause = error.rsplit_once(HINT).map_or(*error, |(cause, _)| cause);
                write!(f, "it has its old size because growing it failed: {cause}")
            }
            Self::NoAnswer { share, timeout } => write!(
                f,
                "the server of {share} hasn't answered within {} seconds",
                timeout.as_secs()
            ),
            Self::RefusedFsGroup { share, group } => write!(
                f,
                "its files don't have fsGroup {group}, because the server of {share} has refused to set it"
            ),
            Self::ShareFailed { share, call, errno } => {
                write!(f, "{call} on {share} fails with {}", Name(*errno))
            }
            Self::HostFiles(target) => write!(
                f,
                "directory {target} on the host holds files that aren't in the volume"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_symptoms_is_normal() {
        let condition = summarize(&[], "ext4");
        assert_eq!(
            (condition.abnormal, condition.message.as_str()),
            (false, "")
        );
    }

    #[test]
    fn each_symptom_is_named_and_each_hint_is_given_once() {
        let target = TargetPath::new("/pods/a/mount").unwrap();
        let symptoms = [
            Symptom::ReadOnly,
            Symptom::Errors(3),
            Symptom::HostFiles(&target),
        ];
        let condition = summarize(&symptoms, "ext4");
        assert!(condition.abnormal);
        let message = condition.message;
        for part in ["read-only", "3 errors", "/pods/a/mount", "move the files"] {
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
        for once in ["e2fsck", "hint: "] {
            assert_eq!(message.matches(once).count(), 1, "{once:?} in: {message}");
        }
    }

    #[test]
    fn a_failed_growth_is_reported_with_its_cause_and_one_hint() {
        let error = "ioctl(/dev/a, EXT4_IOC_RESIZE_FS, 7): EPERM: ext4 refuses; hint: give it the capability";
        let condition = summarize(&[Symptom::NotGrown(error), Symptom::ReadOnly], "ext4");
        assert!(condition.abnormal);
        let message = condition.message;
        for part in ["old size", "EPERM", "give it the capability", "retries"] {
            assert_eq!(message.matches(part).count(), 1, "{part:?} in: {message}");
        }
        assert_eq!(message.matches("hint: ").count(), 1, "{message}");
        assert!(
            message.find("read-only") < message.find("hint: "),
            "{message}"
        );
    }

    #[test]
    fn a_failed_call_is_reported_with_its_error_and_the_checker() {
        let (call, errno) = ("open", Errno::IO);
        for (fstype, checker) in [("xfs", "xfs_repair"), ("vfat", "fsck.vfat")] {
            let condition = summarize(&[Symptom::CallFailed { call, errno }], fstype);
            let message = condition.message;
            for part in ["open on the file system fails with EIO", checker] {
                assert!(message.contains(part), "{part:?} isn't in: {message}");
            }
        }
    }
}

//! How a volume in use fares (CSI's `VolumeCondition`).

use std::fmt;
use std::mem::MaybeUninit;
use std::path::Path;

use crust_state::TargetPath;
use crust_state::bounded::{self, KERNELS_WORD};
use crust_state::record::VolumeRecord;
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use super::mounted::Mounted;
use crate::bare::{self, Contents};
use crate::errno::Name;
use crate::usage::UsageError;

/// CSI's `VolumeCondition`.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    /// Something is wrong with the volume.
    pub abnormal: bool,
    /// What, and what to do; empty when nothing is.
    pub message: String,
}

/// What can be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symptom<'a> {
    /// A look at the file system failed.
    NoAnswer { call: &'static str, errno: Errno },
    /// The kernel has given it up.
    ShutDown,
    /// It was mounted read-write and isn't any more.
    ReadOnly,
    /// ext4's count.
    Errors(u64),
    /// Somebody wrote to the directory that the volume should have been mounted on.
    HostFiles(&'a TargetPath),
}

/// Looks a volume over. `usage` is how its file system answered to that question.
pub(super) fn condition(
    record: &VolumeRecord,
    target: &TargetPath,
    mounted: &Mounted,
    usage: Result<(), &UsageError>,
) -> Condition {
    let mut symptoms = Vec::new();
    if mounted.superblock_has("shutdown") {
        symptoms.push(Symptom::ShutDown);
    } else if let Err((call, errno)) = answers(mounted, usage) {
        symptoms.push(Symptom::NoAnswer { call, errno });
    }
    let read_only = mounted.superblock_has("ro") || mounted.superblock_has("emergency_ro");
    if read_only && !record.superblock.read_only {
        symptoms.push(Symptom::ReadOnly);
    }
    match ext4_errors(record) {
        0 => {}
        errors => symptoms.push(Symptom::Errors(errors)),
    }
    if bare::contents(target.as_path()) == Contents::Files {
        symptoms.push(Symptom::HostFiles(target));
    }
    judge(&symptoms, &record.superblock.fstype)
}

/// Asks for what a file system that was shut down doesn't give: statfs(2) is answered from memory,
/// but xfs opens nothing any more.
fn answers(mounted: &Mounted, usage: Result<(), &UsageError>) -> Result<(), (&'static str, Errno)> {
    if let Err(UsageError::Statfs(errno)) = usage {
        return Err(("fstatfs", *errno));
    }
    let root = match mounted.open() {
        Ok(root) => root,
        // A container's subPath leads to something that isn't for opening, or ids are mapped so
        // that root isn't its owner.
        Err(Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
        Err(errno) => return Err(("open", errno)),
    };
    // The look is no access of a user's: it leaves no time behind.
    if rustix::fs::fcntl_setfl(&root, OFlags::NOATIME).is_err() {
        return Ok(());
    }
    let mut buffer = [MaybeUninit::uninit(); 1024];
    match RawDir::new(&root, &mut buffer).next() {
        // A file is no directory; that it could be opened is all that is asked.
        Some(Err(errno)) if errno != Errno::NOTDIR => Err(("getdents64", errno)),
        _ => Ok(()),
    }
}

/// `/sys/fs/ext4/<device>/errors_count` (Documentation/admin-guide/ext4.rst).
fn ext4_errors(record: &VolumeRecord) -> u64 {
    let device = format!("/sys/dev/block/{}", record.device);
    let Ok(device) = std::fs::canonicalize(device) else {
        return 0;
    };
    let Some(name) = device.file_name() else {
        return 0;
    };
    let file = Path::new("/sys/fs/ext4").join(name).join("errors_count");
    let count = bounded::read_to_string(&file, KERNELS_WORD).unwrap_or_default();
    count.trim_end().parse().unwrap_or(0)
}

/// What is wrong first, then what to do about it.
fn judge(symptoms: &[Symptom<'_>], fstype: &str) -> Condition {
    let what: Vec<String> = symptoms.iter().map(ToString::to_string).collect();
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
        format!("{}; hint: {}", what.join("; "), hints.join("; "))
    };
    Condition {
        abnormal: !symptoms.is_empty(),
        message,
    }
}

impl Symptom<'_> {
    fn hint(&self, fstype: &str) -> String {
        let check = match fstype {
            "xfs" => "xfs_repair",
            "btrfs" => "btrfs check",
            _ => "e2fsck",
        };
        match self {
            Self::NoAnswer { .. } | Self::ShutDown | Self::ReadOnly | Self::Errors(_) => format!(
                "see the kernel's log, end the pods that use the volume, and run {check} on its \
                 device before it is used again"
            ),
            Self::HostFiles(_) => {
                "some pod has used the volume under another runtime handler: move the files away, \
                 into the volume if they belong there"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for Symptom<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer { call, errno } => write!(
                f,
                "the file system answers {call} with {}: it was shut down, or its device is gone",
                Name(*errno)
            ),
            Self::ShutDown => f.write_str("the file system was shut down after an error"),
            Self::ReadOnly => f.write_str("the file system has become read-only after an error"),
            Self::Errors(1) => f.write_str("the file system has recorded an error"),
            Self::Errors(count) => write!(f, "the file system has recorded {count} errors"),
            Self::HostFiles(target) => write!(
                f,
                "files that aren't in the volume stand in {target} on the host"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_symptoms_is_well() {
        let condition = judge(&[], "ext4");
        assert_eq!(
            (condition.abnormal, condition.message.as_str()),
            (false, "")
        );
    }

    #[test]
    fn every_symptom_is_named_and_advice_is_given_once() {
        let target = TargetPath::new("/pods/a/mount").unwrap();
        let symptoms = [
            Symptom::ReadOnly,
            Symptom::Errors(3),
            Symptom::HostFiles(&target),
        ];
        let condition = judge(&symptoms, "ext4");
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
    fn a_call_without_an_answer_is_named_with_its_error() {
        let (call, errno) = ("open", Errno::IO);
        let condition = judge(&[Symptom::NoAnswer { call, errno }], "xfs");
        let message = condition.message;
        for part in ["open with EIO", "xfs_repair"] {
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
    }
}

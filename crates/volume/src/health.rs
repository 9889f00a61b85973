//! Usage and condition of a volume in use (KEP-2857: `RuntimeGetVolumeStats`; CSI's `VolumeCondition`).

use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use crust_blockfs::DeviceNumber;
use crust_state::record::VolumeRecord;
use crust_state::{Process, TargetPath};
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use super::context::Context;
use super::error::{Cause, VolumeError};
use super::volume_mounts::{self, VolumeMount, open_named};
use crate::bare_directory::{self, DirectoryContents};
use crust_blockfs::device::Device;
use crust_blockfs::errno::Name;
use crust_blockfs::fstypes;
use crust_blockfs::mountinfo::Mount;
use crust_blockfs::probe;
use crust_blockfs::usage::{Usage, UsageError, usage};

/// CSI's `VolumeCondition`.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    /// Something is wrong with the volume.
    pub abnormal: bool,
    /// The condition and the next step; empty if nothing is wrong.
    pub message: String,
}

/// Separator between an error and its hint.
const HINT: &str = "; hint: ";

/// A symptom of a volume that isn't well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Symptom<'a> {
    /// A look at the file system failed.
    NoAnswer { call: &'static str, errno: Errno },
    /// The kernel has given it up.
    ShutDown,
    /// It was mounted read-write and isn't any more.
    ReadOnly,
    /// The file system's own count of them.
    Errors(u64),
    /// A growth that was asked for before the mount failed; why, in a sentence.
    NotGrown(&'a str),
    /// Somebody wrote to the directory that the volume should have been mounted on.
    HostFiles(&'a TargetPath),
}

/// A place where a volume is mounted, and what was asked there.
#[derive(Debug, Clone, Copy)]
pub struct HealthQuestion<'a> {
    /// Its root, or what somebody sees of it; `O_PATH` will do.
    pub root: &'a OwnedFd,
    /// The mount.
    pub mount: &'a Mount,
    /// The device.
    pub device: DeviceNumber,
    /// The type that it is mounted as.
    pub fstype: &'a str,
    /// It was to be mounted read-only.
    pub read_only: bool,
    /// How its file system answered to the question how full it is.
    pub usage: Result<(), &'a UsageError>,
}

/// Looks over a volume that is mounted on the host.
#[must_use]
pub fn check_health(look: &HealthQuestion<'_>) -> Condition {
    judge(&symptoms(look), look.fstype)
}

/// Looks a volume in use over. `usage` is how its file system answered to that question, and
/// `not_grown` why it has an older size than was asked for.
pub(super) fn condition(
    record: &VolumeRecord,
    target: &TargetPath,
    mounted: &VolumeMount,
    not_grown: Option<&str>,
    usage: Result<(), &UsageError>,
) -> Condition {
    let look = HealthQuestion {
        root: &mounted.root,
        mount: &mounted.mount,
        device: record.device,
        fstype: &record.superblock.fstype,
        read_only: record.superblock.read_only,
        usage,
    };
    let mut symptoms = symptoms(&look);
    symptoms.extend(not_grown.map(Symptom::NotGrown));
    if bare_directory::contents(target.as_path()) == DirectoryContents::Files {
        symptoms.push(Symptom::HostFiles(target));
    }
    judge(&symptoms, look.fstype)
}

fn symptoms<'a>(look: &HealthQuestion<'_>) -> Vec<Symptom<'a>> {
    let has = |option| look.mount.super_options.has(option);
    let mut symptoms = Vec::new();
    if has("shutdown") {
        symptoms.push(Symptom::ShutDown);
    } else if let Err((call, errno)) = answers(look) {
        symptoms.push(Symptom::NoAnswer { call, errno });
    }
    if (has("ro") || has("emergency_ro")) && !look.read_only && !is_read_only_by_nature(look) {
        symptoms.push(Symptom::ReadOnly);
    }
    let errors = fstypes::find(look.fstype).map_or(0, |known| known.recorded_errors(look.device));
    if errors > 0 {
        symptoms.push(Symptom::Errors(errors));
    }
    symptoms
}

/// Whether the file system can't be mounted read-write at all. Reads the device.
fn is_read_only_by_nature(look: &HealthQuestion<'_>) -> bool {
    let device = Device::of_number(look.device).ok().flatten();
    device.is_some_and(|device| probe::is_read_only_by_nature(&device.into(), look.fstype))
}

/// Asks for what a file system that was shut down doesn't give: statfs(2) is answered from memory,
/// but xfs opens nothing any more.
fn answers(look: &HealthQuestion<'_>) -> Result<(), (&'static str, Errno)> {
    if let Err(UsageError::Statfs(errno)) = look.usage {
        return Err(("fstatfs", *errno));
    }
    let root = match open_named(look.root) {
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

/// Describes the symptoms first, then the next steps.
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
        match self {
            Self::NoAnswer { .. } | Self::ShutDown | Self::ReadOnly | Self::Errors(_) => format!(
                "see the kernel's log, end the pods or containers that use the volume, and run {} on its \
                 device before it is used again",
                fstypes::checker(fstype)
            ),
            Self::NotGrown(why) => {
                let hint = why.split_once(HINT).map(|(_, hint)| hint);
                let hint = hint.unwrap_or("see runcrust's log");
                format!("{hint}; the next mount, and each resize, tries again")
            }
            Self::HostFiles(_) => {
                "some pod has used the volume under another runtime handler, or docker cp or podman cp \
                 has written there: move the files away, into the volume if they belong there"
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
            Self::NotGrown(why) => {
                let what = why.split_once(HINT).map_or(*why, |(what, _)| what);
                write!(f, "it has its old size, since growing it failed: {what}")
            }
            Self::HostFiles(target) => write!(
                f,
                "files that aren't in the volume stand in {target} on the host"
            ),
        }
    }
}

/// Usage and condition of a volume in use.
#[derive(Debug)]
pub struct Stats {
    /// Bytes and inodes; `None` where the file system doesn't tell any more.
    pub usage: Option<Usage>,
    /// Whether all is well.
    pub condition: Condition,
}

/// Looks at a volume where it is mounted: in a live sandbox, or in a live container whose sandbox
/// has ended. The file system is kept busy no longer than that.
pub fn stats(context: &Context<'_>, target: &TargetPath) -> Result<Stats, VolumeError> {
    look(context, target).map_err(|cause| VolumeError::new(target, cause))
}

fn look(context: &Context<'_>, target: &TargetPath) -> Result<Stats, Cause> {
    let Some(volume) = context.crust.volume(&context.as_given(target))? else {
        return Err(Cause::NotStaged(target.clone()));
    };
    let mut record = volume.record()?.ok_or(Cause::NotInUse)?;
    record.retain_live(Process::is_alive);
    let mounted = volume_mounts::find(&record).next();
    let mounted = mounted.ok_or(Cause::NotInUse)?;
    let usage = usage(&mounted.root);
    let answered = usage.as_ref().map(|_| ());
    // One that can't be read fails a create, not a look.
    let not_grown = volume.failed_resize().ok().flatten();
    let condition = condition(
        &record,
        volume.target(),
        &mounted,
        not_grown.as_deref(),
        answered,
    );
    Ok(Stats {
        usage: usage.ok(),
        condition,
    })
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
    fn a_growth_that_failed_is_told_with_its_reason_and_one_hint() {
        let why = "ioctl(/dev/a, EXT4_IOC_RESIZE_FS, 7): EPERM: ext4 refuses; hint: give it the capability";
        let condition = judge(&[Symptom::NotGrown(why), Symptom::ReadOnly], "ext4");
        assert!(condition.abnormal);
        let message = condition.message;
        for part in ["old size", "EPERM", "give it the capability", "tries again"] {
            assert_eq!(message.matches(part).count(), 1, "{part:?} in: {message}");
        }
        assert_eq!(message.matches("hint: ").count(), 1, "{message}");
        assert!(
            message.find("read-only") < message.find("hint: "),
            "{message}"
        );
    }

    #[test]
    fn a_failed_call_is_named_with_its_error_and_checker() {
        let (call, errno) = ("open", Errno::IO);
        for (fstype, checker) in [("xfs", "xfs_repair"), ("vfat", "fsck.vfat")] {
            let condition = judge(&[Symptom::NoAnswer { call, errno }], fstype);
            let message = condition.message;
            for part in ["open with EIO", checker] {
                assert!(message.contains(part), "{part:?} isn't in: {message}");
            }
        }
    }
}

use std::io::Write;

use super::*;
use crate::options::FsOption;
use crate::signature::Uuid;

const AROUND: Circumstances<'_> = Circumstances {
    fstype: "ext4",
    read_only: true,
    options: &[],
    found: DeviceContents::Unknown,
    is_there: false,
    is_read_only_device: false,
    page: 4096,
};

static SEED: Restriction = Restriction {
    errno: Errno::ACCESS,
    reason: "it is a seed",
    hint: "clear the flag",
};

static FAST_COMMITS: Restriction = Restriction {
    errno: Errno::ROFS,
    reason: "the journal has fast commits",
    hint: "mount it read-write once",
};

fn cause(call: &MountCall, errno: Errno, log: &[&str], found: DeviceContents) -> MountErrorCause {
    let log: Vec<_> = log.iter().map(ToString::to_string).collect();
    of(call, errno, &log, &Circumstances { found, ..AROUND })
}

fn signature(fstype: &'static str) -> Signature {
    Signature {
        fstype,
        uuid: Uuid([7; 16]),
        size: 32 << 20,
        block: 4096,
        devices: 1,
        sector: 512,
        is_read_only: false,
        restriction: None,
    }
}

fn found(signature: Signature) -> DeviceContents {
    DeviceContents::A {
        signature,
        room: 32 << 20,
        logical: 512,
    }
}

fn a(fstype: &'static str) -> DeviceContents {
    found(signature(fstype))
}

fn value(key: &str, value: &str) -> FsOption {
    let (key, value) = (key.to_owned(), value.to_owned());
    FsOption::Value { key, value }
}

fn ext4() -> String {
    "ext4".to_owned()
}

#[test]
fn every_error_of_the_design_has_its_cause() {
    let create = MountCall::Create;
    for (errno, expected) in [
        (Errno::BUSY, MountErrorCause::InUse),
        (Errno::NOENT, MountErrorCause::NoDevice),
        (Errno::NXIO, MountErrorCause::NoDevice),
        (Errno::NOTBLK, MountErrorCause::NotBlockDevice),
        (Errno::BADMSG, MountErrorCause::BadChecksum),
        (Errno::UCLEAN, MountErrorCause::Corrupt),
        (Errno::ACCESS, MountErrorCause::ReadOnlyDevice),
        (Errno::ROFS, MountErrorCause::NotWritable),
        (Errno::IO, MountErrorCause::InputOutput),
        (Errno::PERM, MountErrorCause::NotPermitted),
        (Errno::EXIST, MountErrorCause::Remembered),
        (Errno::NOMEM, MountErrorCause::Other),
    ] {
        assert_eq!(
            cause(&create, errno, &[], DeviceContents::Unknown),
            expected
        );
    }
    assert_eq!(
        cause(&MountCall::Open, Errno::NODEV, &[], DeviceContents::Unknown),
        MountErrorCause::UnknownFileSystem { fstype: ext4() }
    );
}

#[test]
fn einval_is_told_apart_by_what_the_device_holds() {
    let unacceptable = || MountErrorCause::Unacceptable {
        fstype: ext4(),
        options: Vec::new(),
    };
    let other = |found| MountErrorCause::OtherFileSystem {
        fstype: ext4(),
        found,
    };
    for (found, expected) in [
        (
            DeviceContents::Other(Contents::Empty),
            MountErrorCause::NoFileSystem { fstype: ext4() },
        ),
        (
            DeviceContents::Other(Contents::Data { at: 7 }),
            MountErrorCause::UnknownData { at: 7 },
        ),
        (a("xfs"), other("xfs")),
        (a("btrfs"), other("btrfs")),
        (a("ext4"), unacceptable()),
        (a("ext3"), unacceptable()),
        (DeviceContents::Unknown, unacceptable()),
    ] {
        assert_eq!(
            cause(&MountCall::Create, Errno::INVAL, &[], found),
            expected
        );
    }
}

#[test]
fn a_refusal_without_a_word_names_all_options() {
    let options = [FsOption::Flag("ssd".to_owned()), value("compress", "foo")];
    let around = Circumstances {
        fstype: "btrfs",
        options: &options,
        found: a("btrfs"),
        ..AROUND
    };
    let refused = of(&MountCall::Create, Errno::INVAL, &[], &around);
    assert_eq!(
        refused.to_string(),
        "the kernel refuses the device's btrfs with the options ssd,compress=foo"
    );
    let around = Circumstances {
        options: &[],
        ..around
    };
    let refused = of(&MountCall::Create, Errno::INVAL, &[], &around);
    assert_eq!(refused.to_string(), "the kernel refuses the device's btrfs");
}

#[test]
fn a_device_shorter_than_its_file_system_is_recognized() {
    for errno in [Errno::INVAL, Errno::IO] {
        for (room, short) in [(31, true), (32, false), (33, false)] {
            let size = 32;
            let found = DeviceContents::A {
                signature: Signature {
                    size,
                    ..signature("ext4")
                },
                room,
                logical: 512,
            };
            let expected = MountErrorCause::Truncated { size, room };
            let cause = cause(&MountCall::Create, errno, &[], found);
            assert_eq!(cause == expected, short, "{errno} {room}");
        }
    }
}

#[test]
fn a_shut_down_file_system_is_told_from_a_read_error() {
    for (call, expected) in [
        (MountCall::Create, MountErrorCause::InputOutput),
        (MountCall::Mount, MountErrorCause::ShutDown),
        (MountCall::Stat, MountErrorCause::ShutDown),
    ] {
        assert_eq!(
            cause(&call, Errno::IO, &[], DeviceContents::Unknown),
            expected
        );
    }
}

#[test]
fn a_subvolume_that_is_missing_is_not_taken_for_the_device() {
    let options = [value("subvol", "/no")];
    for (is_there, options, expected) in [
        (false, &options[..], MountErrorCause::NoDevice),
        (
            true,
            &options,
            MountErrorCause::NoSubvolume {
                option: "subvol=/no".to_owned(),
            },
        ),
        (true, &[], MountErrorCause::Other),
    ] {
        let around = Circumstances {
            fstype: "btrfs",
            options,
            is_there,
            ..AROUND
        };
        assert_eq!(of(&MountCall::Create, Errno::NOENT, &[], &around), expected);
    }
}

#[test]
fn an_option_is_named_by_the_call_or_by_the_kernel() {
    let option = value("dax", "maybe");
    let expected = |option: &str| MountErrorCause::BadOption {
        fstype: ext4(),
        option: option.to_owned(),
    };
    assert_eq!(
        cause(
            &MountCall::Option(option),
            Errno::INVAL,
            &[],
            DeviceContents::Unknown
        ),
        expected("dax")
    );
    for log in ["ext4: Unknown parameter 'foo'", "ext4: Bad value for 'foo'"] {
        assert_eq!(
            cause(
                &MountCall::Create,
                Errno::INVAL,
                &[log],
                DeviceContents::Other(Contents::Empty)
            ),
            expected("foo")
        );
    }
}

#[test]
fn ebusy_is_told_apart_by_what_the_kernel_says() {
    for (log, expected) in [
        (
            "loop0: Can't mount, would change RO state",
            MountErrorCause::ReadOnlyMismatch { read_only: true },
        ),
        (
            "ext4: reusing existing filesystem not allowed",
            MountErrorCause::AlreadyMounted,
        ),
        ("/dev/loop0: Can't open blockdev", MountErrorCause::InUse),
    ] {
        assert_eq!(
            cause(
                &MountCall::Create,
                Errno::BUSY,
                &[log],
                DeviceContents::Unknown
            ),
            expected
        );
    }
}

#[test]
fn read_only_and_read_write_are_named_the_right_way_round() {
    assert_eq!(
        MountErrorCause::ReadOnlyMismatch { read_only: true }.to_string(),
        "the device's file system is mounted read-write, and read-only was asked for"
    );
}

#[test]
fn what_cannot_be_written_to_is_told_apart() {
    let restricted = |fstype, restriction| {
        found(Signature {
            restriction: Some(restriction),
            ..signature(fstype)
        })
    };
    let seed = restricted("btrfs", &SEED);
    let fast_commits = restricted("ext4", &FAST_COMMITS);
    for (errno, found, is_read_only_device, expected) in [
        (
            Errno::ACCESS,
            seed,
            false,
            MountErrorCause::Restricted(&SEED),
        ),
        (
            Errno::ACCESS,
            a("btrfs"),
            true,
            MountErrorCause::ReadOnlyDevice,
        ),
        (
            Errno::ROFS,
            fast_commits,
            true,
            MountErrorCause::JournalOnReadOnlyDevice,
        ),
        (
            Errno::ROFS,
            fast_commits,
            false,
            MountErrorCause::Restricted(&FAST_COMMITS),
        ),
        (
            Errno::ROFS,
            a("ext4"),
            true,
            MountErrorCause::JournalOnReadOnlyDevice,
        ),
        (Errno::ROFS, a("ext4"), false, MountErrorCause::NotWritable),
    ] {
        let around = Circumstances {
            found,
            is_read_only_device,
            ..AROUND
        };
        assert_eq!(of(&MountCall::Create, errno, &[], &around), expected);
    }
}

#[test]
fn units_that_do_not_fit_are_named_with_both_sizes() {
    for (errno, logical, block, expected) in [
        (Errno::NOSYS, 512, 4096, MountErrorCause::Other),
        (
            Errno::NOSYS,
            4096,
            4096,
            MountErrorCause::SmallSectors {
                sector: 512,
                logical: 4096,
            },
        ),
        (
            Errno::INVAL,
            4096,
            4096,
            MountErrorCause::SmallSectors {
                sector: 512,
                logical: 4096,
            },
        ),
        (
            Errno::NOSYS,
            512,
            65_536,
            MountErrorCause::LargeBlocks {
                fstype: ext4(),
                block: 65_536,
                page: 4096,
            },
        ),
    ] {
        let found = DeviceContents::A {
            signature: Signature {
                block,
                ..signature("ext4")
            },
            room: 32 << 20,
            logical,
        };
        assert_eq!(cause(&MountCall::Create, errno, &[], found), expected);
    }
}

/// Returns one of each cause, in the order of the declaration. The match has no wildcard, so that a new
/// cause has to be put into the chain.
fn each_cause() -> impl Iterator<Item = MountErrorCause> {
    let fstype = ext4;
    let first = MountErrorCause::UnknownFileSystem { fstype: fstype() };
    std::iter::successors(Some(first), move |cause| {
        Some(match cause {
            MountErrorCause::UnknownFileSystem { .. } => MountErrorCause::BadOption {
                fstype: fstype(),
                option: "dax".to_owned(),
            },
            MountErrorCause::BadOption { .. } => MountErrorCause::NoFileSystem { fstype: fstype() },
            MountErrorCause::NoFileSystem { .. } => MountErrorCause::SomethingElse {
                fstype: fstype(),
                found: squashfs(),
            },
            MountErrorCause::SomethingElse { .. } => MountErrorCause::UnknownData { at: 0 },
            MountErrorCause::UnknownData { .. } => MountErrorCause::OtherFileSystem {
                fstype: fstype(),
                found: "xfs",
            },
            MountErrorCause::OtherFileSystem { .. } => MountErrorCause::Unacceptable {
                fstype: fstype(),
                options: vec!["dax".to_owned()],
            },
            MountErrorCause::Unacceptable { .. } => MountErrorCause::Truncated { size: 2, room: 1 },
            MountErrorCause::Truncated { .. } => MountErrorCause::NoSubvolume {
                option: "subvol=a".to_owned(),
            },
            MountErrorCause::NoSubvolume { .. } => MountErrorCause::Remembered,
            MountErrorCause::Remembered => MountErrorCause::InUse,
            MountErrorCause::InUse => MountErrorCause::AlreadyMounted,
            MountErrorCause::AlreadyMounted => {
                MountErrorCause::ReadOnlyMismatch { read_only: true }
            }
            MountErrorCause::ReadOnlyMismatch { .. } => MountErrorCause::NoDevice,
            MountErrorCause::NoDevice => MountErrorCause::NotBlockDevice,
            MountErrorCause::NotBlockDevice => MountErrorCause::BadChecksum,
            MountErrorCause::BadChecksum => MountErrorCause::Corrupt,
            MountErrorCause::Corrupt => MountErrorCause::ReadOnlyDevice,
            MountErrorCause::ReadOnlyDevice => MountErrorCause::JournalOnReadOnlyDevice,
            MountErrorCause::JournalOnReadOnlyDevice => MountErrorCause::Restricted(&SEED),
            MountErrorCause::Restricted(_) => MountErrorCause::NotWritable,
            MountErrorCause::NotWritable => MountErrorCause::SmallSectors {
                sector: 512,
                logical: 4096,
            },
            MountErrorCause::SmallSectors { .. } => MountErrorCause::LargeBlocks {
                fstype: fstype(),
                block: 65_536,
                page: 4096,
            },
            MountErrorCause::LargeBlocks { .. } => MountErrorCause::ShutDown,
            MountErrorCause::ShutDown => MountErrorCause::InputOutput,
            MountErrorCause::InputOutput => MountErrorCause::NotPermitted,
            MountErrorCause::NotPermitted => MountErrorCause::Other,
            MountErrorCause::Other => return None,
        })
    })
}

fn squashfs() -> &'static KnownFormat {
    let mut image = tempfile::tempfile().expect("a file");
    image.write_all(b"hsqs").expect("it is written");
    match crate::contents::identify(&image, 4) {
        Ok(Contents::Known(known)) => known,
        other => panic!("it is a squashfs: {other:?}"),
    }
}

/// Whoever formats a device that isn't empty has destroyed what was there.
#[test]
fn no_hint_suggests_to_make_a_file_system() {
    for cause in each_cause() {
        let hint = cause.hint("ext4");
        for program in ["mkfs", "mke2fs"] {
            assert!(!hint.contains(program), "{cause:?}: {hint}");
        }
    }
}

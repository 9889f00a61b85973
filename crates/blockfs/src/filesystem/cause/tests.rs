use std::io::Write;

use super::*;
use crate::options::FsOption;
use crate::signature::Uuid;

const CONTEXT: ErrorContext<'_> = ErrorContext {
    fstype: "ext4",
    read_only: true,
    options: &[],
    contents: DeviceContents::Unknown,
    device_exists: false,
    is_read_only_device: false,
    page_size: 4096,
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

fn cause(
    call: &MountCall,
    errno: Errno,
    log: &[&str],
    contents: DeviceContents,
) -> MountErrorCause {
    let log: Vec<_> = log.iter().map(ToString::to_string).collect();
    find_cause(
        call,
        errno,
        &log,
        &ErrorContext {
            contents,
            ..CONTEXT
        },
    )
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

fn with_signature(signature: Signature) -> DeviceContents {
    DeviceContents::FileSystem {
        signature,
        device_size: 32 << 20,
        logical_block: 512,
    }
}

fn holding(fstype: &'static str) -> DeviceContents {
    with_signature(signature(fstype))
}

fn value(key: &str, value: &str) -> FsOption {
    let (key, value) = (key.to_owned(), value.to_owned());
    FsOption::Value { key, value }
}

fn ext4() -> String {
    "ext4".to_owned()
}

#[test]
fn each_errno_has_its_cause() {
    let create = MountCall::Create;
    for (errno, expected) in [
        (Errno::BUSY, MountErrorCause::InUse),
        (Errno::NOENT, MountErrorCause::NoDevice),
        (Errno::NXIO, MountErrorCause::NoDevice),
        (Errno::NOTBLK, MountErrorCause::NotBlockDevice),
        (Errno::BADMSG, MountErrorCause::BadChecksum),
        (Errno::UCLEAN, MountErrorCause::Corrupt),
        (Errno::ACCESS, MountErrorCause::ReadOnlyDevice),
        (Errno::ROFS, MountErrorCause::WriteRequired),
        (Errno::IO, MountErrorCause::ReadFailed),
        (Errno::PERM, MountErrorCause::NotPermitted),
        (Errno::EXIST, MountErrorCause::StaleBtrfsDevice),
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
fn causes_of_einval_are_distinguished_by_the_devices_contents() {
    let rejected = || MountErrorCause::Rejected {
        fstype: ext4(),
        options: Vec::new(),
    };
    let other = |found| MountErrorCause::OtherFileSystem {
        fstype: ext4(),
        found,
    };
    for (contents, expected) in [
        (
            DeviceContents::Other(Contents::Empty),
            MountErrorCause::NoFileSystem { fstype: ext4() },
        ),
        (
            DeviceContents::Other(Contents::Data { offset: 7 }),
            MountErrorCause::UnknownData { offset: 7 },
        ),
        (holding("xfs"), other("xfs")),
        (holding("btrfs"), other("btrfs")),
        (holding("ext4"), rejected()),
        (holding("ext3"), rejected()),
        (DeviceContents::Unknown, rejected()),
    ] {
        assert_eq!(
            cause(&MountCall::Create, Errno::INVAL, &[], contents),
            expected
        );
    }
}

#[test]
fn all_options_are_named_if_the_kernel_gives_no_reason() {
    let options = [FsOption::Flag("ssd".to_owned()), value("compress", "foo")];
    let context = ErrorContext {
        fstype: "btrfs",
        options: &options,
        contents: holding("btrfs"),
        ..CONTEXT
    };
    let refused = find_cause(&MountCall::Create, Errno::INVAL, &[], &context);
    assert_eq!(
        refused.to_string(),
        "the kernel refuses the device's btrfs with the options ssd,compress=foo"
    );
    let context = ErrorContext {
        options: &[],
        ..context
    };
    let refused = find_cause(&MountCall::Create, Errno::INVAL, &[], &context);
    assert_eq!(refused.to_string(), "the kernel refuses the device's btrfs");
}

#[test]
fn a_device_shorter_than_its_file_system_is_recognized() {
    for errno in [Errno::INVAL, Errno::IO] {
        for (device_size, short) in [(31, true), (32, false), (33, false)] {
            let size = 32;
            let contents = DeviceContents::FileSystem {
                signature: Signature {
                    size,
                    ..signature("ext4")
                },
                device_size,
                logical_block: 512,
            };
            let expected = MountErrorCause::Truncated { size, device_size };
            let cause = cause(&MountCall::Create, errno, &[], contents);
            assert_eq!(cause == expected, short, "{errno} {device_size}");
        }
    }
}

#[test]
fn a_shut_down_file_system_is_distinguished_from_a_read_error() {
    for (call, expected) in [
        (MountCall::Create, MountErrorCause::ReadFailed),
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
fn a_missing_subvolume_is_not_reported_as_a_missing_device() {
    let options = [value("subvol", "/no")];
    for (device_exists, options, expected) in [
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
        let context = ErrorContext {
            fstype: "btrfs",
            options,
            device_exists,
            ..CONTEXT
        };
        assert_eq!(
            find_cause(&MountCall::Create, Errno::NOENT, &[], &context),
            expected
        );
    }
}

#[test]
fn a_bad_option_is_known_from_the_call_or_from_the_kernels_log() {
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
fn causes_of_ebusy_are_distinguished_by_the_kernels_log() {
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
fn the_present_mode_is_named_before_the_requested_one() {
    assert_eq!(
        MountErrorCause::ReadOnlyMismatch { read_only: true }.to_string(),
        "the device's file system is mounted read-write, and read-only was asked for"
    );
}

#[test]
fn causes_of_read_only_errors_are_distinguished() {
    let restricted = |fstype, restriction| {
        with_signature(Signature {
            restriction: Some(restriction),
            ..signature(fstype)
        })
    };
    let seed = restricted("btrfs", &SEED);
    let fast_commits = restricted("ext4", &FAST_COMMITS);
    for (errno, contents, is_read_only_device, expected) in [
        (
            Errno::ACCESS,
            seed,
            false,
            MountErrorCause::Restricted(&SEED),
        ),
        (
            Errno::ACCESS,
            holding("btrfs"),
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
            holding("ext4"),
            true,
            MountErrorCause::JournalOnReadOnlyDevice,
        ),
        (
            Errno::ROFS,
            holding("ext4"),
            false,
            MountErrorCause::WriteRequired,
        ),
    ] {
        let context = ErrorContext {
            contents,
            is_read_only_device,
            ..CONTEXT
        };
        assert_eq!(
            find_cause(&MountCall::Create, errno, &[], &context),
            expected
        );
    }
}

#[test]
fn unsupported_units_are_reported_with_both_sizes() {
    for (errno, logical_block, block, expected) in [
        (Errno::NOSYS, 512, 4096, MountErrorCause::Other),
        (
            Errno::NOSYS,
            4096,
            4096,
            MountErrorCause::SmallSectors {
                sector: 512,
                logical_block: 4096,
            },
        ),
        (
            Errno::INVAL,
            4096,
            4096,
            MountErrorCause::SmallSectors {
                sector: 512,
                logical_block: 4096,
            },
        ),
        (
            Errno::NOSYS,
            512,
            65_536,
            MountErrorCause::LargeBlocks {
                fstype: ext4(),
                block: 65_536,
                page_size: 4096,
            },
        ),
    ] {
        let contents = DeviceContents::FileSystem {
            signature: Signature {
                block,
                ..signature("ext4")
            },
            device_size: 32 << 20,
            logical_block,
        };
        assert_eq!(cause(&MountCall::Create, errno, &[], contents), expected);
    }
}

/// Returns one of each cause, in the order of their declaration. The match has no wildcard, so that a new cause must be
/// added to the chain.
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
            MountErrorCause::NoFileSystem { .. } => MountErrorCause::OtherContents {
                fstype: fstype(),
                found: squashfs(),
            },
            MountErrorCause::OtherContents { .. } => MountErrorCause::UnknownData { offset: 0 },
            MountErrorCause::UnknownData { .. } => MountErrorCause::OtherFileSystem {
                fstype: fstype(),
                found: "xfs",
            },
            MountErrorCause::OtherFileSystem { .. } => MountErrorCause::Rejected {
                fstype: fstype(),
                options: vec!["dax".to_owned()],
            },
            MountErrorCause::Rejected { .. } => MountErrorCause::Truncated {
                size: 2,
                device_size: 1,
            },
            MountErrorCause::Truncated { .. } => MountErrorCause::NoSubvolume {
                option: "subvol=a".to_owned(),
            },
            MountErrorCause::NoSubvolume { .. } => MountErrorCause::StaleBtrfsDevice,
            MountErrorCause::StaleBtrfsDevice => MountErrorCause::InUse,
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
            MountErrorCause::Restricted(_) => MountErrorCause::WriteRequired,
            MountErrorCause::WriteRequired => MountErrorCause::SmallSectors {
                sector: 512,
                logical_block: 4096,
            },
            MountErrorCause::SmallSectors { .. } => MountErrorCause::LargeBlocks {
                fstype: fstype(),
                block: 65_536,
                page_size: 4096,
            },
            MountErrorCause::LargeBlocks { .. } => MountErrorCause::ShutDown,
            MountErrorCause::ShutDown => MountErrorCause::ReadFailed,
            MountErrorCause::ReadFailed => MountErrorCause::NotPermitted,
            MountErrorCause::NotPermitted => MountErrorCause::Other,
            MountErrorCause::Other => return None,
        })
    })
}

fn squashfs() -> &'static KnownFormat {
    let mut image = tempfile::tempfile().expect("a file");
    image.write_all(b"hsqs").expect("the magic is written");
    match crate::contents::identify(&image, 4) {
        Ok(Contents::Known(known)) => known,
        other => panic!("it is a squashfs: {other:?}"),
    }
}

/// Formatting a device that isn't empty destroys its contents.
#[test]
fn no_hint_suggests_making_a_file_system() {
    for cause in each_cause() {
        let hint = cause.hint("ext4");
        for program in ["mkfs", "mke2fs"] {
            assert!(!hint.contains(program), "{cause:?}: {hint}");
        }
    }
}

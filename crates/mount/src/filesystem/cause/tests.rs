use super::*;
use crate::options::FsOption;

fn cause(call: &Call, errno: Errno, log: &[&str], found: Found) -> Cause {
    let log: Vec<_> = log.iter().map(ToString::to_string).collect();
    let around = Circumstances {
        fstype: "ext4",
        read_only: true,
        found,
    };
    of(call, errno, &log, &around)
}

fn ext4() -> String {
    "ext4".to_owned()
}

#[test]
fn every_error_of_the_design_has_its_cause() {
    let create = Call::Create;
    for (errno, expected) in [
        (Errno::BUSY, Cause::InUse),
        (Errno::NOENT, Cause::NoDevice),
        (Errno::NXIO, Cause::NoDevice),
        (Errno::NOTBLK, Cause::NotBlockDevice),
        (Errno::BADMSG, Cause::BadChecksum),
        (Errno::UCLEAN, Cause::Corrupt),
        (Errno::ACCESS, Cause::ReadOnlyDevice),
        (Errno::ROFS, Cause::JournalOnReadOnlyDevice),
        (Errno::IO, Cause::InputOutput),
        (Errno::PERM, Cause::NotPermitted),
        (Errno::NOMEM, Cause::Other),
    ] {
        assert_eq!(cause(&create, errno, &[], Found::Unknown), expected);
    }
    assert_eq!(
        cause(&Call::Open, Errno::NODEV, &[], Found::Unknown),
        Cause::UnknownFileSystem { fstype: ext4() }
    );
}

#[test]
fn einval_is_told_apart_by_what_the_device_holds() {
    for (found, expected) in [
        (Found::Nothing, Cause::NoFileSystem { fstype: ext4() }),
        (
            Found::A(Kind::Xfs),
            Cause::OtherFileSystem {
                fstype: ext4(),
                found: Kind::Xfs,
            },
        ),
        (Found::A(Kind::Ext), Cause::Unacceptable { fstype: ext4() }),
        (Found::Unknown, Cause::Unacceptable { fstype: ext4() }),
    ] {
        assert_eq!(cause(&Call::Create, Errno::INVAL, &[], found), expected);
    }
}

#[test]
fn an_option_is_named_by_the_call_or_by_the_kernel() {
    let option = FsOption::Value {
        key: "dax".to_owned(),
        value: "maybe".to_owned(),
    };
    let expected = |option: &str| Cause::BadOption {
        fstype: ext4(),
        option: option.to_owned(),
    };
    assert_eq!(
        cause(&Call::Option(option), Errno::INVAL, &[], Found::Unknown),
        expected("dax")
    );
    for log in ["ext4: Unknown parameter 'foo'", "ext4: Bad value for 'foo'"] {
        assert_eq!(
            cause(&Call::Create, Errno::INVAL, &[log], Found::Nothing),
            expected("foo")
        );
    }
}

#[test]
fn ebusy_is_told_apart_by_what_the_kernel_says() {
    for (log, expected) in [
        (
            "loop0: Can't mount, would change RO state",
            Cause::ReadOnlyMismatch { read_only: true },
        ),
        (
            "ext4: reusing existing filesystem not allowed",
            Cause::AlreadyMounted,
        ),
        ("/dev/loop0: Can't open blockdev", Cause::InUse),
    ] {
        assert_eq!(
            cause(&Call::Create, Errno::BUSY, &[log], Found::Unknown),
            expected
        );
    }
}

#[test]
fn read_only_and_read_write_are_named_the_right_way_round() {
    assert_eq!(
        Cause::ReadOnlyMismatch { read_only: true }.to_string(),
        "the device's file system is mounted read-write, and read-only was asked for"
    );
}

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::*;

fn parse_one(line: &[u8]) -> Mount {
    let mut mounts = parse(line).expect("the line is valid");
    assert_eq!(mounts.len(), 1);
    mounts.remove(0)
}

#[test]
fn the_example_of_the_manual_page_is_parsed() {
    let mount = parse_one(
        b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n",
    );
    assert_eq!(mount.id, 36);
    assert_eq!(mount.parent, 35);
    assert_eq!(mount.device, DeviceNumber::new(98, 0));
    assert_eq!(mount.root, Path::new("/mnt1"));
    assert_eq!(mount.mount_point, Path::new("/mnt2"));
    assert_eq!(mount.options, "rw,noatime");
    assert_eq!(
        mount.propagation,
        Propagation {
            master: Some(1),
            ..Propagation::default()
        }
    );
    assert_eq!(mount.fstype, "ext3");
    assert_eq!(mount.source, "/dev/root");
    assert_eq!(mount.super_options.unescaped(), "rw,errors=continue");
}

#[test]
fn names_are_unescaped() {
    for (escaped, name) in [
        (&br"/a\040b"[..], &b"/a b"[..]),
        (br"/tab\011", b"/tab\t"),
        (br"/line\012feed", b"/line\nfeed"),
        (br"/back\134slash", br"/back\slash"),
        (br"/back\134040", br"/back\040"),
        (br"/hash\043", b"/hash#"),
        (b"/latin\xe9", b"/latin\xe9"),
        (br"/ends\04", br"/ends\04"),
        (br"/not\940octal", br"/not\940octal"),
        (br"/more\777", br"/more\777"),
        (b"/-", b"/-"),
    ] {
        let line = [
            b"1 0 0:1 / ",
            escaped,
            b" rw - tmpfs ",
            &escaped[1..],
            b" rw",
        ]
        .concat();
        let mount = parse_one(&line);
        assert_eq!(mount.mount_point.as_os_str(), OsStr::from_bytes(name));
        assert_eq!(mount.source, OsStr::from_bytes(&name[1..]));
    }
}

#[test]
fn any_number_of_optional_fields_is_parsed() {
    for (tags, expected) in [
        ("", Propagation::default()),
        (
            "shared:7 ",
            Propagation {
                shared: Some(7),
                ..Propagation::default()
            },
        ),
        (
            "shared:7 master:2 propagate_from:1 ",
            Propagation {
                shared: Some(7),
                master: Some(2),
                propagate_from: Some(1),
                unbindable: false,
            },
        ),
        (
            "unbindable ",
            Propagation {
                unbindable: true,
                ..Propagation::default()
            },
        ),
        ("from-the-future:9 alsonew ", Propagation::default()),
    ] {
        let line = format!("1 0 0:1 / /m rw {tags}- tmpfs t rw");
        assert_eq!(parse_one(line.as_bytes()).propagation, expected, "{tags:?}");
    }
}

#[test]
fn an_empty_source_stays_empty() {
    let mount = parse_one(b"1 0 0:1 / /m rw - tmpfs  rw,size=4k");
    assert_eq!(mount.source, "");
    assert_eq!(mount.super_options.unescaped(), "rw,size=4k");
}

#[test]
fn the_error_names_the_malformed_line_and_its_field() {
    for (line, field) in [
        ("x 0 0:1 / /m rw - tmpfs t rw", "mount id"),
        ("1 0 0-1 / /m rw - tmpfs t rw", "device"),
        ("1 0 0:1 / /m rw shared:1 tmpfs t rw", "separator"),
        ("1 0 0:1 / /m rw shared:x - tmpfs t rw", "propagation tag"),
        ("1 0 0:1 / /m rw - tmpfs", "source"),
    ] {
        let contents = format!("1 0 0:1 / / rw - tmpfs t rw\n{line}\n");
        let bad = parse(contents.as_bytes()).expect_err("the second line is bad");
        assert_eq!((bad.line, bad.field, bad.text.as_str()), (2, field, line));
    }
}

#[test]
fn the_mount_table_of_this_process_has_a_root() {
    let mounts = read(rustix::process::getpid().as_raw_nonzero().get())
        .expect("the mount table of this process is readable");
    assert!(
        mounts
            .iter()
            .any(|mount| mount.mount_point == Path::new("/"))
    );
    assert_eq!(
        mounts,
        read_own().expect("the mount table of this thread is readable")
    );
}

#[test]
fn only_whole_options_match() {
    let options = std::ffi::OsStr::new("rw,errors=remount-ro,norecovery");
    assert!(has_option(options, "rw") && !has_option(options, "ro"));
}

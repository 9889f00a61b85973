//! The target for `/proc/<pid>/mountinfo`: accepted mounts that are written in the kernel's format and read again stay
//! the same.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use crust_blockfs::mountinfo::{Mount, Propagation, parse};

/// Parses a mountinfo file. Workloads control the mount points and sources in it.
pub fn mountinfo(bytes: &[u8]) {
    let mounts = match parse(bytes) {
        Ok(mounts) => mounts,
        Err(bad) => {
            let line = bytes.split(|byte| *byte == b'\n').nth(bad.line - 1);
            let line = line.expect("a line of the file");
            assert_eq!(bad.text, String::from_utf8_lossy(line));
            // The error doesn't depend on other lines.
            assert_eq!(parse(line).map_err(|bad| bad.field), Err(bad.field));
            return;
        }
    };
    let lines = bytes.split(|byte| *byte == b'\n');
    assert_eq!(mounts.len(), lines.filter(|line| !line.is_empty()).count());
    let written = write(&mounts);
    assert_eq!(parse(&written).expect("the kernel's format"), mounts);
}

/// Formats mounts like `fs/proc_namespace.c` and `mangle()`.
fn write(mounts: &[Mount]) -> Vec<u8> {
    let mut out = Vec::new();
    for mount in mounts {
        let numbers = format!("{} {} {} ", mount.id, mount.parent, mount.device);
        out.extend_from_slice(numbers.as_bytes());
        for field in [mount.root.as_os_str(), mount.mount_point.as_os_str()] {
            out.extend(escaped(field));
            out.push(b' ');
        }
        out.extend(escaped(&mount.options));
        out.extend(tags(mount.propagation).bytes());
        out.extend_from_slice(b" - ");
        out.extend(escaped(&mount.fstype));
        out.push(b' ');
        out.extend(escaped(&mount.source));
        out.push(b' ');
        for (number, option) in mount.super_options.iter().enumerate() {
            if number > 0 {
                out.push(b',');
            }
            out.extend(escaped_option(&option));
        }
        out.push(b'\n');
    }
    out
}

fn tags(propagation: Propagation) -> String {
    let mut tags = String::new();
    for (name, group) in [
        ("shared", propagation.shared),
        ("master", propagation.master),
        ("propagate_from", propagation.propagate_from),
    ] {
        if let Some(group) = group {
            // Writing to a String can't fail.
            let _ = write!(tags, " {name}:{group}");
        }
    }
    if propagation.unbindable {
        tags.push_str(" unbindable");
    }
    tags
}

fn escaped(field: &OsStr) -> Vec<u8> {
    octal(field, b" \t\n\\#")
}

/// Escapes like `seq_show_option()` in `linux/seq_file.h`.
fn escaped_option(option: &OsStr) -> Vec<u8> {
    octal(option, b", \t\n\\")
}

fn octal(field: &OsStr, special: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in field.as_bytes() {
        match byte {
            byte if special.contains(byte) => out.extend(format!("\\{byte:03o}").bytes()),
            other => out.push(*other),
        }
    }
    out
}

//! Directories that an overlay is made of (the kernel's `Documentation/filesystems/overlayfs.rst`).

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, fstatfs, openat, statx};

use crate::mountinfo::{MountInfoError, Table};

/// `OVERLAYFS_SUPER_MAGIC` of `linux/magic.h`.
const MAGIC: u64 = 0x794c_7630;

/// Returns the directories that mount options of an overlay name: lower ones, the upper and the work
/// directory. `options` is one option, or several with commas between them; fuse-overlayfs takes the same.
#[must_use]
pub fn layers(options: &[u8]) -> Vec<PathBuf> {
    let mut layers = Vec::new();
    for option in split(options, b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else {
            continue;
        };
        let value = &option[at + 1..];
        match &option[..at] {
            b"lowerdir" => layers.extend(split(value, b':').map(path)),
            b"lowerdir+" | b"datadir+" | b"upperdir" | b"workdir" => layers.push(path(value)),
            _ => {}
        }
    }
    // Two colons in a row set layers with data alone apart.
    layers.retain(|layer| !layer.as_os_str().is_empty());
    layers
}

/// Returns the directories of the overlay that is mounted at `path`; none where something else is. The
/// mount table is read only for an overlay. fuse-overlayfs doesn't say there what it is made of.
pub fn layers_at(path: &Path) -> Result<Vec<PathBuf>, MountInfoError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // What can't be opened can't be bound either: the delegate says so.
    let Ok(held) = openat(CWD, path, flags, Mode::empty()) else {
        return Ok(Vec::new());
    };
    let is_overlay = fstatfs(&held).is_ok_and(|found| found.f_type.cast_unsigned() == MAGIC);
    let Some(mount) = is_overlay.then(|| mount_id(&held)).flatten() else {
        return Ok(Vec::new());
    };
    let mount = Table::own()?.mount(mount)?;
    let options = mount.map(|mount| mount.super_options).unwrap_or_default();
    Ok(layers(options.as_bytes()))
}

fn mount_id(held: impl AsFd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(held, c"", flags, StatxFlags::MNT_ID).ok()?;
    Some(stat.stx_mnt_id)
}

/// The parts between separators that no backslash stands before.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut is_escaped = false;
    text.split(move |byte| {
        let is_end = *byte == separator && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })
}

/// A path without its escapes.
fn path(text: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        plain.push(*escaped.unwrap_or(&byte));
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_of_an_overlay_is_named() {
        for (options, expected) in [
            ("lowerdir=/a", &["/a"][..]),
            ("lowerdir=/a:/b::/data", &["/a", "/b", "/data"]),
            ("lowerdir+=/a:b", &["/a:b"]),
            ("datadir+=/d", &["/d"]),
            (
                "ro,lowerdir=/a,upperdir=/u,workdir=/w,index=off",
                &["/a", "/u", "/w"],
            ),
            (r"lowerdir=/a\:b:/c\\", &["/a:b", r"/c\"]),
            (r"lowerdir=/a\,b,upperdir=/u", &["/a,b", "/u"]),
            (r"upperdir=/u\:v", &["/u:v"]),
            ("lowerdir=", &[]),
            ("lowerdir", &[]),
            ("metacopy=on,userxattr", &[]),
            ("xlowerdir=/a", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(layers(options.as_bytes()), expected, "{options}");
        }
    }

    #[test]
    fn what_is_no_overlay_has_no_layers() {
        for path in ["/proc", "/no/such/directory"] {
            let layers = layers_at(Path::new(path)).unwrap();
            assert_eq!(layers, <[PathBuf; 0]>::default(), "{path}");
        }
    }
}

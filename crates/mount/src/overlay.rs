//! Directories that an overlay is made of (the kernel's `Documentation/filesystems/overlayfs.rst`).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::mountinfo::Mount;

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

/// Whether a path leads to an overlay. What can't be looked at is none: it can't be bound either, and the
/// delegate says so. fuse-overlayfs isn't told from another FUSE file system.
#[must_use]
pub fn is_at(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type.cast_unsigned() == MAGIC)
}

/// Returns the directories that a mounted overlay is made of, and what each of them has at `below`, a path
/// from the overlay's root. A relative one is below the working directory of whoever mounted it, which the
/// kernel doesn't tell.
#[must_use]
pub fn layers_of(mount: &Mount, below: &Path) -> Vec<PathBuf> {
    let mut layers = layers(mount.super_options.as_bytes());
    let below = below.strip_prefix("/").unwrap_or(below);
    if !below.as_os_str().is_empty() {
        let inner: Vec<PathBuf> = layers.iter().map(|layer| layer.join(below)).collect();
        layers.extend(inner);
    }
    layers
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
    use crate::mountinfo;

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
    fn a_path_below_an_overlay_is_one_of_each_layer() {
        let line =
            b"36 35 0:50 / /m rw - overlay overlay rw,lowerdir=/a:rel,upperdir=/u,workdir=/w";
        let mounts = mountinfo::parse(line).unwrap();
        for (below, expected) in [
            ("/", &["/a", "rel", "/u", "/w"][..]),
            (
                "/s/t",
                &[
                    "/a", "rel", "/u", "/w", "/a/s/t", "rel/s/t", "/u/s/t", "/w/s/t",
                ],
            ),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(layers_of(&mounts[0], Path::new(below)), expected, "{below}");
        }
    }

    #[test]
    fn what_is_no_overlay_is_not_taken_for_one() {
        for path in ["/proc", "/no/such/directory"] {
            assert!(!is_at(Path::new(path)), "{path}");
        }
    }
}

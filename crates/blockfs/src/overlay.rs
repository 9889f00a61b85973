//! Finds the layers of an overlay (the kernel's `Documentation/filesystems/overlayfs.rst`).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::mountinfo::Mount;

/// Returns the directories in the mount options of an overlay: the lower directories, the upper directory and the work
/// directory. `options` is one option, or several that are separated by commas, as mount(2) and fuse-overlayfs take
/// them.
///
/// A backslash in `lowerdir`, `upperdir` or `workdir` usually escapes the next character, but not on every kernel and
/// not in fuse-overlayfs. A directory with a backslash is returned both unescaped and as it is written.
#[must_use]
pub fn layers_in_options(options: &[u8]) -> Vec<PathBuf> {
    split(options, b',').flat_map(layers_of_option).collect()
}

/// Returns the directories of a mounted overlay, followed by the path of `below` in each of them; nothing for any other
/// mount. `below` is a path from the overlay's root. A relative directory is relative to the working directory of the
/// process that mounted the overlay, which the kernel doesn't report.
#[must_use]
pub fn layers_of_mount(mount: &Mount, below: &Path) -> Vec<PathBuf> {
    if mount.fstype != "overlay" {
        return Vec::new();
    }
    let options = mount.super_options.iter();
    let mut layers: Vec<PathBuf> = options
        .flat_map(|option| layers_of_option(option.as_bytes()))
        .collect();
    let below = below.strip_prefix("/").unwrap_or(below);
    if !below.as_os_str().is_empty() {
        let inner: Vec<PathBuf> = layers.iter().map(|layer| layer.join(below)).collect();
        layers.extend(inner);
    }
    layers
}

/// Returns the directories in one option.
fn layers_of_option(option: &[u8]) -> Vec<PathBuf> {
    let Some(at) = option.iter().position(|byte| *byte == b'=') else {
        return Vec::new();
    };
    let value = &option[at + 1..];
    let mut layers = match &option[..at] {
        b"lowerdir" => split(value, b':').flat_map(unescape).collect(),
        b"upperdir" | b"workdir" => unescape(value),
        // The values of these options have no escapes (ovl_mount_dir_noesc of fs/overlayfs/params.c).
        b"lowerdir+" | b"datadir+" => vec![literal(value)],
        _ => Vec::new(),
    };
    // Two colons in a row separate data-only layers, which leaves an empty name.
    layers.retain(|layer| !layer.as_os_str().is_empty());
    layers
}

/// Splits a text at the separators that aren't escaped by a backslash.
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut is_escaped = false;
    text.split(move |byte| {
        let is_end = *byte == separator && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })
}

/// Returns a path without its escapes and, if it contains a backslash, also as it is written.
fn unescape(text: &[u8]) -> Vec<PathBuf> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        plain.push(*escaped.unwrap_or(&byte));
    }
    let mut paths = vec![OsString::from_vec(plain).into()];
    if text.contains(&b'\\') {
        paths.push(literal(text));
    }
    paths
}

fn literal(text: &[u8]) -> PathBuf {
    OsString::from_vec(text.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountinfo;

    #[test]
    fn every_directory_in_the_options_is_returned() {
        for (options, expected) in [
            ("lowerdir=/a", &["/a"][..]),
            ("lowerdir=/a:/b::/data", &["/a", "/b", "/data"]),
            ("lowerdir+=/a:b", &["/a:b"]),
            ("datadir+=/d", &["/d"]),
            (
                "ro,lowerdir=/a,upperdir=/u,workdir=/w,index=off",
                &["/a", "/u", "/w"],
            ),
            (r"lowerdir=/a\:b:/c\\", &["/a:b", r"/a\:b", r"/c\", r"/c\\"]),
            (r"lowerdir=/a\,b,upperdir=/u", &["/a,b", r"/a\,b", "/u"]),
            (r"upperdir=/u\:v", &["/u:v", r"/u\:v"]),
            (r"lowerdir+=/a\,b", &[r"/a\,b"]),
            ("lowerdir=", &[]),
            ("lowerdir", &[]),
            ("metacopy=on,userxattr", &[]),
            ("xlowerdir=/a", &[]),
        ] {
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(layers_in_options(options.as_bytes()), expected, "{options}");
        }
    }

    #[test]
    fn a_path_below_an_overlay_is_returned_for_each_layer() {
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
            assert_eq!(
                layers_of_mount(&mounts[0], Path::new(below)),
                expected,
                "{below}"
            );
        }
    }

    #[test]
    fn escaped_names_in_a_mounted_overlay_are_decoded() {
        // As the kernel writes them: a comma as \054, a backslash as \134, a blank as \040.
        for (options, expected) in [
            (r"rw,lowerdir+=/t/a\054b", &["/t/a,b"][..]),
            (r"rw,lowerdir+=/t/a\134b", &[r"/t/a\b"]),
            (
                r"rw,lowerdir+=/t/a\054lowerdir=/x,datadir+=/d",
                &["/t/a,lowerdir=/x", "/d"],
            ),
            (
                r"rw,lowerdir=/t/a\134\054b,upperdir=/u\054\040v,workdir=/w",
                &["/t/a,b", r"/t/a\,b", "/u, v", "/w"],
            ),
        ] {
            let line = format!("36 35 0:50 / /m rw - overlay overlay {options}");
            let mounts = mountinfo::parse(line.as_bytes()).unwrap();
            let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(
                layers_of_mount(&mounts[0], Path::new("/")),
                expected,
                "{options}"
            );
        }
        let other = b"36 35 0:50 / /m rw - tmpfs tmpfs rw,lowerdir=/a";
        let mounts = mountinfo::parse(other).unwrap();
        assert_eq!(
            layers_of_mount(&mounts[0], Path::new("/")),
            <[PathBuf; 0]>::default()
        );
    }
}

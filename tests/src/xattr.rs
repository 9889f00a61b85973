//! Extended attributes of files, read and written with GNU tar, which every Debian has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use tar::{Archive, Builder, Header};

use crate::Run;
use crate::dir::unique;

/// The prefix of attributes in an archive's pax headers.
const PREFIX: &str = "SCHILY.xattr.";

/// Writes a file with one attribute.
pub fn write_file(path: &Path, content: &[u8], name: &str, value: &str) {
    let (directory, file) = parts(path);
    let archive = directory.join(unique("xattr.tar"));
    let mut builder = Builder::new(File::create(&archive).expect("an archive"));
    let key = format!("{PREFIX}{name}");
    builder
        .append_pax_extensions([(key.as_str(), value.as_bytes())])
        .expect("a pax header");
    let mut header = Header::new_ustar();
    header.set_size(u64::try_from(content.len()).expect("usize fits"));
    header.set_mode(0o600);
    builder
        .append_data(&mut header, file, content)
        .and_then(|()| builder.finish())
        .expect("a file in an archive");
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--xattrs", "--xattrs-include=*", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(directory);
    let _ = Run::capture(&mut tar).success();
    fs::remove_file(archive).expect("rm of an archive");
    assert!(
        read(path).contains_key(name),
        "{path:?}: its file system does not store {name}"
    );
}

/// Returns all attributes that tar supports.
pub fn read(path: &Path) -> BTreeMap<String, String> {
    let (directory, file) = parts(path);
    let archive = std::env::temp_dir().join(unique("xattr.tar"));
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--format=pax",
        "--xattrs",
        "--xattrs-include=*",
        "--file",
    ])
    .arg(&archive)
    .arg("--directory")
    .arg(directory)
    .arg(file);
    let _ = Run::capture(&mut tar).success();
    let mut found = BTreeMap::new();
    let mut read = Archive::new(File::open(&archive).expect("an archive"));
    for entry in read.entries().expect("an archive's entries") {
        let mut entry = entry.expect("an entry");
        let headers = entry.pax_extensions().expect("pax headers");
        for header in headers.into_iter().flatten() {
            let header = header.expect("a pax header");
            let name = header.key().expect("a key in UTF-8").strip_prefix(PREFIX);
            if let Some(name) = name {
                let value = String::from_utf8_lossy(header.value_bytes());
                found.insert(name.to_owned(), value.into_owned());
            }
        }
    }
    fs::remove_file(archive).expect("rm of an archive");
    found
}

fn parts(path: &Path) -> (&Path, &Path) {
    let name = path.file_name().expect("a file's path");
    (path.parent().expect("in a directory"), Path::new(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_attribute_is_read_again() {
        let dir = crate::TestDir::new();
        let path = dir.join("file");
        write_file(&path, b"content", "user.runcrust", "a value");
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(read(&path)["user.runcrust"], "a value");
        fs::write(dir.join("other"), "").unwrap();
        assert!(!read(&dir.join("other")).contains_key("user.runcrust"));
    }
}

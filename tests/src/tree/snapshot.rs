//! Snapshots of trees.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::Digest as _;

/// The number of differences that a failure shows.
const SHOWN: usize = 40;

/// The metadata and content of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The type as in `ls -l`: `-`, `d`, `l`, `p`, `s`, `c` or `b`.
    pub kind: char,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The inode number.
    pub inode: u64,
    /// The link count. That of a directory depends on its subdirectories.
    pub links: u64,
    /// The device number of a device node.
    pub device: u64,
    /// The digest of a file's content, or the target of a symbolic link.
    pub content: String,
    pub modified: (i64, i64),
    /// `st_ctim`, which even a chmod to the same mode changes.
    pub changed: (i64, i64),
}

/// The entries of a tree by their paths; the root's path is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, Entry>);

impl Snapshot {
    /// Takes a snapshot of a directory and everything below it, or of one file. Symbolic links are not followed.
    pub fn take(root: &Path) -> Self {
        let mut entries = BTreeMap::new();
        add(root, PathBuf::new(), &mut entries);
        Self(entries)
    }

    /// Returns the entry with this path, which must exist.
    pub fn entry(&self, path: impl AsRef<Path>) -> &Entry {
        let path = path.as_ref();
        self.0.get(path).unwrap_or_else(|| panic!("no {path:?}"))
    }

    /// Returns all entries, ordered by path.
    pub fn entries(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_path(), entry))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns false for every snapshot, because the root is an entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Resets `changed` of all entries, to compare trees that were made at different times.
    #[must_use]
    pub fn without_change_times(mut self) -> Self {
        for entry in self.0.values_mut() {
            entry.changed = (0, 0);
        }
        self
    }

    /// Clears the setuid and setgid bits of everything but directories. A program that is killed while it changes a
    /// group can lose these bits (docs/limitations.md).
    #[must_use]
    pub fn without_set_ids(mut self) -> Self {
        for entry in self.0.values_mut().filter(|entry| entry.kind != 'd') {
            entry.mode &= 0o1777;
        }
        self
    }

    /// Checks that a snapshot is equal to the expected one. Panics with the differences of each entry.
    #[track_caller]
    pub fn assert_is(&self, expected: &Self) {
        let differences = self.differences(expected);
        let shown = differences.iter().take(SHOWN).cloned();
        assert!(
            differences.is_empty(),
            "{} of {} entries differ:\n{}",
            differences.len(),
            expected.len(),
            shown.collect::<Vec<_>>().join("\n")
        );
    }

    fn differences(&self, expected: &Self) -> Vec<String> {
        let paths = expected.0.keys();
        let unexpected = self.0.keys().filter(|path| !expected.0.contains_key(*path));
        let both = paths.chain(unexpected).filter_map(|path| {
            let difference = match (self.0.get(path), expected.0.get(path)) {
                (Some(found), Some(wanted)) => found.difference(wanted)?,
                (None, _) => "is missing".to_owned(),
                (_, None) => "is new".to_owned(),
            };
            Some(format!("{path:?}: {difference}"))
        });
        both.collect()
    }
}

impl Entry {
    fn difference(&self, expected: &Self) -> Option<String> {
        let fields = |entry: &Self| {
            [
                ("kind", entry.kind.to_string()),
                ("mode", format!("{:04o}", entry.mode)),
                ("uid", entry.uid.to_string()),
                ("gid", entry.gid.to_string()),
                ("inode", entry.inode.to_string()),
                ("links", entry.links.to_string()),
                ("device", entry.device.to_string()),
                ("content", entry.content.clone()),
                ("mtime", format!("{:?}", entry.modified)),
                ("ctime", format!("{:?}", entry.changed)),
            ]
        };
        let pairs = fields(self).into_iter().zip(fields(expected));
        let different = pairs
            .filter(|((_, found), (_, wanted))| found != wanted)
            .map(|((name, found), (_, wanted))| format!("{name} {found}, expected {wanted}"));
        let different: Vec<String> = different.collect();
        (!different.is_empty()).then(|| different.join("; "))
    }
}

fn add(path: &Path, name: PathBuf, entries: &mut BTreeMap<PathBuf, Entry>) {
    let info = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("lstat {path:?}: {error}"));
    let kind = info.file_type();
    let (letter, content) = if kind.is_file() {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("read {path:?}: {error}"));
        let digest = sha2::Sha256::digest(bytes);
        ('-', format!("{digest:x?}"))
    } else if kind.is_symlink() {
        ('l', format!("{:?}", fs::read_link(path).expect("a link")))
    } else {
        let letters = [
            ('d', kind.is_dir()),
            ('p', kind.is_fifo()),
            ('s', kind.is_socket()),
            ('c', kind.is_char_device()),
        ];
        let known = letters.iter().find(|(_, is)| *is);
        (known.map_or('b', |(letter, _)| *letter), String::new())
    };
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap_or_else(|error| panic!("{path:?}: {error}")) {
            let below = entry.expect("an entry").file_name();
            add(&path.join(&below), name.join(&below), entries);
        }
    }
    let entry = Entry {
        kind: letter,
        mode: info.mode() & 0o7777,
        uid: info.uid(),
        gid: info.gid(),
        inode: info.ino(),
        links: info.nlink(),
        device: info.rdev(),
        content,
        modified: (info.mtime(), info.mtime_nsec()),
        changed: (info.ctime(), info.ctime_nsec()),
    };
    entries.insert(name, entry);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn every_difference_is_reported_with_its_path() {
        let dir = crate::TestDir::new();
        fs::write(dir.join("same"), "").unwrap();
        fs::write(dir.join("mode"), "").unwrap();
        fs::set_permissions(dir.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
        symlink("same", dir.join("link")).unwrap();
        let before = Snapshot::take(dir.path()).without_change_times();
        before.assert_is(&before);
        fs::set_permissions(dir.join("mode"), fs::Permissions::from_mode(0o4640)).unwrap();
        fs::remove_file(dir.join("link")).unwrap();
        fs::write(dir.join("new"), "").unwrap();
        let mut after = Snapshot::take(dir.path()).without_change_times();
        after.0.remove(Path::new(""));
        let mut before = before;
        before.0.remove(Path::new(""));
        assert_eq!(
            after.differences(&before),
            [
                "\"link\": is missing",
                "\"mode\": mode 4640, expected 0600",
                "\"new\": is new"
            ]
        );
    }
}

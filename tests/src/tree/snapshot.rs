//! A tree, written down entry by entry.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::Digest as _;

/// So many differences are shown.
const SHOWN: usize = 40;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As `ls -l` has it: `-`, `d`, `l`, `p`, `s`, `c`, `b`.
    pub kind: char,
    /// The twelve permission bits.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The inode's number.
    pub inode: u64,
    /// How many names the inode has; for a directory, its subdirectories.
    pub links: u64,
    /// A device node's number.
    pub device: u64,
    /// A digest of a file's bytes, or what a symbolic link says.
    pub content: String,
    /// `st_mtim`
    pub modified: (i64, i64),
    /// `st_ctim`: even a chmod to the same mode shows here.
    pub changed: (i64, i64),
}

/// A tree's entries by their paths in it; the root's is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<PathBuf, Entry>);

impl Snapshot {
    /// Of a directory and all below it, or of one file. No link is followed.
    pub fn take(root: &Path) -> Self {
        let mut entries = BTreeMap::new();
        add(root, PathBuf::new(), &mut entries);
        Self(entries)
    }

    /// One of the entries.
    pub fn entry(&self, path: impl AsRef<Path>) -> &Entry {
        let path = path.as_ref();
        self.0.get(path).unwrap_or_else(|| panic!("no {path:?}"))
    }

    /// All entries, in the order of their paths.
    pub fn entries(&self) -> impl Iterator<Item = (&Path, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_path(), entry))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never: there is a root.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same with every `changed` forgotten, to compare what was made at different times.
    #[must_use]
    pub fn without_change_times(mut self) -> Self {
        for entry in self.0.values_mut() {
            entry.changed = (0, 0);
        }
        self
    }

    /// The same with setuid and setgid of what isn't a directory forgotten: who is killed while it
    /// changes a group takes them along (docs/limitations.md).
    #[must_use]
    pub fn without_set_ids(mut self) -> Self {
        for entry in self.0.values_mut().filter(|entry| entry.kind != 'd') {
            entry.mode &= 0o1777;
        }
        self
    }

    /// Compares with what it should be.
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
    fn every_difference_is_told_by_path() {
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

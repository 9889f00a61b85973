//! A part of a directory: as many names as one getdents64(2) gives.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// For getdents64(2), in bytes: about two thousand names.
const LISTING: usize = 64 * 1024;
/// From here on what is left of a directory is worth another worker.
const LARGE: usize = LISTING / 2;

/// Keeps its memory from one part to the next.
#[derive(Debug, Default)]
pub(super) struct Batch {
    listing: Vec<u8>,
    /// One name after the other, each with its NUL.
    names: Vec<u8>,
    /// By inode number.
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    inode: u64,
    /// Of its name.
    start: usize,
    directory: bool,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self {
            listing: Vec::with_capacity(LISTING),
            ..Self::default()
        }
    }

    /// Reads on where the last reader of `directory` ended; `false` at its end.
    pub(super) fn read(&mut self, directory: BorrowedFd<'_>) -> Result<bool, Errno> {
        self.names.clear();
        self.entries.clear();
        let buffer: &mut [MaybeUninit<u8>] = self.listing.spare_capacity_mut();
        let mut listing = RawDir::new(directory, buffer);
        let mut any = false;
        while let Some(entry) = listing.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // It was removed since it was opened.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(errno),
            };
            any = true;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                let start = self.names.len();
                self.names.extend_from_slice(name.to_bytes_with_nul());
                self.entries.push(Entry {
                    inode: entry.ino(),
                    start,
                    // Unknown, where a file system doesn't tell, isn't.
                    directory: entry.file_type() == FileType::Directory,
                });
            }
            if listing.is_buffer_empty() {
                break;
            }
        }
        // Inodes lie on the disk by their numbers, and names in a directory by their hashes.
        self.entries.sort_unstable_by_key(|entry| entry.inode);
        Ok(any)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the directory is likely to go on for long.
    pub(super) fn is_large(&self) -> bool {
        // struct linux_dirent64 has 19 bytes before the name, and is padded to eight.
        self.names.len() + 22 * self.entries.len() >= LARGE
    }

    /// What the listing says is a directory.
    pub(super) fn directories(&self) -> impl DoubleEndedIterator<Item = &CStr> {
        self.names_where(true)
    }

    /// Everything else.
    pub(super) fn others(&self) -> impl DoubleEndedIterator<Item = &CStr> {
        self.names_where(false)
    }

    fn names_where(&self, directory: bool) -> impl DoubleEndedIterator<Item = &CStr> {
        let entries = self.entries.iter();
        entries
            .filter(move |entry| entry.directory == directory)
            .filter_map(|entry| CStr::from_bytes_until_nul(&self.names[entry.start..]).ok())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn every_name_comes_once_and_those_of_a_part_by_their_inodes() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let mut expected = BTreeSet::new();
        for n in 0..3000 {
            // Long names, so that there are several parts.
            let name = format!("{n:0>200}");
            if n % 3 == 0 {
                fs::create_dir(root.path().join(&name)).expect("a directory");
            } else {
                File::create(root.path().join(&name)).expect("a file");
            }
            expected.insert(name);
        }
        let directory = File::open(root.path()).expect("it opens");
        let mut batch = Batch::new();
        let (mut parts, mut large) = (0, 0);
        while batch.read(directory.as_fd()).expect("it is read") {
            parts += 1;
            large += u32::from(batch.is_large());
            let sorted = |names: Vec<&CStr>, is_directory: bool| {
                let inodes = names.iter().map(|name| {
                    let path = root.path().join(name.to_str().expect("digits"));
                    let metadata = fs::symlink_metadata(path).expect("it is there");
                    assert_eq!(metadata.is_dir(), is_directory);
                    metadata.ino()
                });
                inodes.collect::<Vec<_>>().is_sorted()
            };
            assert!(sorted(batch.directories().collect(), true));
            assert!(sorted(batch.others().collect(), false));
            for name in batch.directories().chain(batch.others()) {
                assert!(expected.remove(name.to_str().expect("digits")));
            }
        }
        assert!(expected.is_empty(), "{expected:?}");
        assert!(parts > 3 && large >= parts - 1, "{large} of {parts}");
        assert_eq!(batch.len(), 0);
    }

    #[test]
    fn an_empty_directory_is_a_part_without_names_and_then_the_end() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = File::open(root.path()).expect("it opens");
        let mut batch = Batch::new();
        assert!(batch.read(directory.as_fd()).expect("it is read"));
        assert_eq!((batch.len(), batch.is_large()), (0, false));
        assert!(!batch.read(directory.as_fd()).expect("it is read"));
    }
}

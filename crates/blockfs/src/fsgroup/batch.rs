//! Names of a directory's entries, in the order in which they are dealt with.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// The size of a buffer for getdents64(2) in bytes. It holds about two thousand names.
const LISTING: usize = 64 * 1024;
/// From so many bytes on a directory is worth more than one worker.
const LARGE: usize = LISTING / 2;
/// The most names that are sorted at once, in bytes, with the copies of directories' names that wait: about half a
/// million names.
const MOST: usize = 16 << 20;
/// The number of entries that a worker takes at once.
const PART: usize = 512;
/// Unused capacity in bytes that a stack of names may keep in any case.
const UNUSED_CAPACITY: usize = 64 << 10;

/// A buffer for listing directories, which is used again for each.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(LISTING))
    }
}

/// A directory, or as much of it as is in memory at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// One after the other, each with its NUL.
    names: Vec<u8>,
    /// The entries that are directories by the listing.
    directories: Vec<Entry>,
    /// Everything else, the first one last.
    others: Vec<Entry>,
    /// In bytes, of the names of directories.
    copies: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    inode: u64,
    /// The start of its name.
    start: usize,
}

impl Batch {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.directories.clear();
        self.others.clear();
        self.copies = 0;
    }

    /// Reads on where the last reader of `directory` ended, as much as the buffer takes; `false` at
    /// its end.
    pub(super) fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        buffer: &mut Buffer,
    ) -> Result<bool, Errno> {
        let buffer: &mut [MaybeUninit<u8>] = buffer.0.spare_capacity_mut();
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
                self.push(name, entry.ino(), entry.file_type());
            }
            if listing.is_buffer_empty() {
                break;
            }
        }
        Ok(any)
    }

    fn push(&mut self, name: &CStr, inode: u64, kind: FileType) {
        let start = self.names.len();
        let name = name.to_bytes_with_nul();
        self.names.extend_from_slice(name);
        // Unknown, where a file system doesn't tell, isn't one.
        let entries = if kind == FileType::Directory {
            self.copies += name.len();
            &mut self.directories
        } else {
            &mut self.others
        };
        entries.push(Entry { inode, start });
    }

    /// Returns the size of all names read so far in bytes, each with its NUL.
    pub(super) fn names_size(&self) -> usize {
        self.names.len()
    }

    /// Returns the names read after their size was `start`, in the directory's order.
    pub(super) fn names_from(&self, start: usize) -> impl Iterator<Item = &[u8]> {
        let each = self.names[start..].split_inclusive(|byte| *byte == 0);
        each.map(|name| name.strip_suffix(&[0]).unwrap_or(name))
    }

    /// Sorts the entries by inode number, the order of the inodes on the disk and in its journal. A directory's own
    /// order may be that of its names' hashes.
    pub(super) fn sort(&mut self) {
        self.directories.sort_unstable_by_key(|entry| entry.inode);
        self.others
            .sort_unstable_by_key(|entry| std::cmp::Reverse(entry.inode));
    }

    pub(super) fn is_large(&self) -> bool {
        self.size() >= LARGE
    }

    pub(super) fn is_full(&self) -> bool {
        self.size() + self.copies >= MOST
    }

    fn size(&self) -> usize {
        self.names_size() + size_of::<Entry>() * self.len()
    }

    pub(super) fn len(&self) -> usize {
        self.directories.len() + self.others.len()
    }

    pub(super) fn directories(&self) -> Names {
        Names::first_to_last(self.directories.iter().map(|entry| self.name(*entry)))
    }

    pub(super) fn others(&self) -> impl Iterator<Item = &CStr> {
        self.others.iter().rev().map(|entry| self.name(*entry))
    }

    /// Takes the first of what isn't a directory; `None` when all was taken.
    pub(super) fn part(&mut self) -> Option<Self> {
        let from = self.others.len().saturating_sub(PART);
        let mut part = Self::default();
        for entry in self.others.drain(from..) {
            let name = name_at(&self.names, entry.start);
            let start = part.names.len();
            part.names.extend_from_slice(name.to_bytes_with_nul());
            part.others.push(Entry { start, ..entry });
        }
        (!part.others.is_empty()).then_some(part)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.others.is_empty()
    }

    fn name(&self, entry: Entry) -> &CStr {
        name_at(&self.names, entry.start)
    }
}

fn name_at(names: &[u8], start: usize) -> &CStr {
    CStr::from_bytes_until_nul(&names[start..]).unwrap_or_default()
}

/// A stack of names of directories that wait, packed: one directory may have millions of them.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// One after the other, each with its NUL.
    bytes: Vec<u8>,
}

impl Names {
    /// Makes a stack of which the first of `names` is popped first.
    pub(super) fn first_to_last<'a>(
        names: impl DoubleEndedIterator<Item = &'a CStr> + Clone,
    ) -> Self {
        // They may be all that fits: growing, there would be as many again for a moment.
        let lengths = names.clone().map(|name| name.count_bytes() + 1);
        let mut bytes = Vec::with_capacity(lengths.sum());
        for name in names.rev() {
            bytes.extend_from_slice(name.to_bytes_with_nul());
        }
        Self { bytes }
    }

    pub(super) fn pop(&mut self) -> Option<CString> {
        let last = self.bytes.len().checked_sub(1)?;
        let start = self.bytes[..last].iter().rposition(|byte| *byte == 0);
        let name = self.bytes.split_off(start.map_or(0, |nul| nul + 1));
        // The queue counts the names that are left, and another directory is read when few are. Without this, each
        // stack would keep the memory of all its names until the last one is popped.
        if self.bytes.capacity() / 2 > self.bytes.len() + UNUSED_CAPACITY {
            self.bytes.shrink_to_fit();
        }
        CString::from_vec_with_nul(name).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the size of the names in bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::CString;
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;

    fn inode(root: &Path, name: &CStr) -> u64 {
        let path = root.join(name.to_str().expect("digits"));
        fs::symlink_metadata(path).expect("it is there").ino()
    }

    /// Two thousand files and a thousand directories, with names so long that they take several
    /// listings; and the batch that has them all.
    fn listed() -> (tempfile::TempDir, Batch, usize) {
        let root = tempfile::tempdir().expect("a temporary directory");
        for n in 0..3000 {
            let path = root.path().join(format!("{n:0>200}"));
            if n % 3 == 0 {
                fs::create_dir(path).expect("a directory");
            } else {
                File::create(path).expect("a file");
            }
        }
        let directory = File::open(root.path()).expect("it opens");
        let (mut batch, mut buffer) = (Batch::default(), Buffer::new());
        let mut reads = 0;
        while batch
            .read(directory.as_fd(), &mut buffer)
            .expect("it is read")
        {
            reads += 1;
            assert!(batch.is_large());
        }
        batch.sort();
        (root, batch, reads)
    }

    /// A directory with a million subdirectories is read in parts. If the names of each part kept their memory until
    /// the last one is popped, the walk's memory would grow with the directory.
    #[test]
    fn popped_names_release_their_memory() {
        let name = CString::new(vec![b'n'; 255]).expect("a name");
        let mut names = Names::first_to_last(vec![name.as_c_str(); 10_000].into_iter());
        while names.pop().is_some() {
            let (kept, needed) = (names.bytes.capacity(), names.size());
            assert!(
                kept <= 2 * (needed + UNUSED_CAPACITY) + 1,
                "{kept} for {needed}"
            );
        }
    }

    #[test]
    fn a_batch_and_its_waiting_names_are_bounded() {
        for kind in [FileType::Directory, FileType::RegularFile] {
            for length in [1, 255] {
                let name = CString::new(vec![b'n'; length]).expect("a name");
                let mut batch = Batch::default();
                while !batch.is_full() {
                    batch.push(&name, 1, kind);
                }
                let waits = batch.directories().size();
                let bytes = batch.size() + waits;
                assert!(
                    (MOST..MOST + 1024).contains(&bytes),
                    "{kind:?} {length}: {bytes}"
                );
                assert_eq!(waits > 0, kind == FileType::Directory);
            }
        }
    }

    #[test]
    fn every_name_comes_once_by_its_kind_and_inode() {
        let (root, batch, reads) = listed();
        assert!(reads > 3, "{reads}");
        let (mut directories, mut names) = (batch.directories(), BTreeSet::new());
        let mut inodes = Vec::new();
        while let Some(name) = directories.pop() {
            inodes.push(inode(root.path(), &name));
            assert!(root.path().join(name.to_str().expect("digits")).is_dir());
            names.insert(name);
        }
        assert!(inodes.len() == 1000 && inodes.is_sorted());
        let inodes = batch.others().map(|name| inode(root.path(), name));
        let inodes = inodes.collect::<Vec<_>>();
        assert!(inodes.len() == 2000 && inodes.is_sorted());
        names.extend(batch.others().map(CStr::to_owned));
        assert_eq!((names.len(), batch.len()), (3000, 3000));
    }

    #[test]
    fn the_parts_have_every_file_once_in_the_same_order() {
        let (_root, mut batch, _) = listed();
        let files = batch.others().map(CStr::to_owned).collect::<Vec<_>>();
        let mut parts = Vec::new();
        while let Some(part) = batch.part() {
            assert!(part.len() <= PART && part.directories().is_empty());
            parts.extend(part.others().map(CStr::to_owned));
            assert_eq!(batch.is_taken(), parts.len() == files.len());
        }
        assert_eq!(parts, files);
    }

    #[test]
    fn an_empty_directory_is_no_name_and_then_the_end() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = File::open(root.path()).expect("it opens");
        let (mut batch, mut buffer) = (Batch::default(), Buffer::new());
        let mut read = || batch.read(directory.as_fd(), &mut buffer);
        assert_eq!(read(), Ok(true));
        assert_eq!(read(), Ok(false));
        assert!(!batch.is_large() && batch.is_taken() && batch.part().is_none());
        assert_eq!(batch.directories().pop(), None::<CString>);
    }

    #[test]
    fn names_come_out_as_they_went_in() {
        let names = [c"a", c"long\nname", c"\xff", c"z"];
        let mut packed = Names::first_to_last(names.into_iter());
        assert_eq!(packed.size(), 2 + 10 + 2 + 2);
        for name in names {
            assert!(!packed.is_empty());
            assert_eq!(packed.pop().as_deref(), Some(name));
        }
        assert!(packed.is_empty());
        assert_eq!(packed.pop(), None);
    }
}

//! Batches of a directory's entries, in the order in which the walk handles them.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// Size of a buffer for getdents64(2) in bytes. It holds about two thousand names.
const BUFFER_SIZE: usize = 64 * 1024;
/// Size in bytes from which a batch is shared among several workers.
const LARGE_SIZE: usize = BUFFER_SIZE / 2;
/// Maximum size of a batch in bytes, with the copies of its directories' names that wait in the queue: about half a
/// million names.
const MAX_SIZE: usize = 16 << 20;
/// Number of entries that a worker takes at once.
const CHUNK_LEN: usize = 512;
/// Unused capacity in bytes that a stack of names may keep in any case.
const UNUSED_CAPACITY: usize = 64 << 10;

/// A buffer for listing directories. Each worker reuses its own.
pub(super) struct ListingBuffer(Vec<u8>);

impl ListingBuffer {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(BUFFER_SIZE))
    }
}

/// The entries of a directory, or as many of a large directory as fit into memory at once.
#[derive(Debug, Default)]
pub(super) struct EntryBatch {
    /// All names, each followed by a NUL.
    names: Vec<u8>,
    /// Entries that the listing has as directories.
    directories: Vec<BatchEntry>,
    /// All other entries, in reverse order.
    non_directories: Vec<BatchEntry>,
    /// Total size of the directories' names in bytes.
    directory_names_size: usize,
}

#[derive(Debug, Clone, Copy)]
struct BatchEntry {
    inode: u64,
    /// Offset of the entry's name in `EntryBatch::names`.
    start: usize,
}

impl EntryBatch {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.directories.clear();
        self.non_directories.clear();
        self.directory_names_size = 0;
    }

    /// Adds the next entries of `directory`, as many as fit into the buffer. Continues where the last reader of the
    /// descriptor stopped. Returns `false` at the end of the directory.
    pub(super) fn read(
        &mut self,
        directory: BorrowedFd<'_>,
        buffer: &mut ListingBuffer,
    ) -> Result<bool, Errno> {
        let buffer: &mut [MaybeUninit<u8>] = buffer.0.spare_capacity_mut();
        let mut listing = RawDir::new(directory, buffer);
        let mut any = false;
        while let Some(entry) = listing.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The directory was removed after it had been opened.
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
        // If the file system doesn't report types, the worker finds out with statx(2).
        let entries = if kind == FileType::Directory {
            self.directory_names_size += name.len();
            &mut self.directories
        } else {
            &mut self.non_directories
        };
        entries.push(BatchEntry { inode, start });
    }

    /// Returns the size of all names read so far in bytes, including their NULs.
    pub(super) fn names_size(&self) -> usize {
        self.names.len()
    }

    /// Returns the names that were read after [`EntryBatch::names_size`] returned `start`, in the directory's order.
    pub(super) fn names_from(&self, start: usize) -> impl Iterator<Item = &[u8]> {
        let names = self.names[start..].split_inclusive(|byte| *byte == 0);
        names.map(|name| name.strip_suffix(&[0]).unwrap_or(name))
    }

    /// Sorts the entries by inode number. That is the order of the inodes on the disk and in the journal; a directory
    /// may list its entries by the hashes of their names.
    pub(super) fn sort(&mut self) {
        self.directories.sort_unstable_by_key(|entry| entry.inode);
        self.non_directories
            .sort_unstable_by_key(|entry| std::cmp::Reverse(entry.inode));
    }

    pub(super) fn is_large(&self) -> bool {
        self.size() >= LARGE_SIZE
    }

    pub(super) fn is_full(&self) -> bool {
        self.size() + self.directory_names_size >= MAX_SIZE
    }

    fn size(&self) -> usize {
        self.names_size() + size_of::<BatchEntry>() * self.len()
    }

    pub(super) fn len(&self) -> usize {
        self.directories.len() + self.non_directories.len()
    }

    pub(super) fn directories(&self) -> NameStack {
        NameStack::first_to_last(self.directories.iter().map(|entry| self.name(*entry)))
    }

    pub(super) fn non_directories(&self) -> impl Iterator<Item = &CStr> {
        self.non_directories
            .iter()
            .rev()
            .map(|entry| self.name(*entry))
    }

    /// Takes the first [`CHUNK_LEN`] entries that aren't directories; `None` if there are none left.
    pub(super) fn take_chunk(&mut self) -> Option<Self> {
        let from = self.non_directories.len().saturating_sub(CHUNK_LEN);
        let mut chunk = Self::default();
        for entry in self.non_directories.drain(from..) {
            let name = name_at(&self.names, entry.start);
            let start = chunk.names.len();
            chunk.names.extend_from_slice(name.to_bytes_with_nul());
            chunk.non_directories.push(BatchEntry { start, ..entry });
        }
        (!chunk.non_directories.is_empty()).then_some(chunk)
    }

    /// Returns true if all entries that aren't directories have been taken.
    pub(super) fn is_drained(&self) -> bool {
        self.non_directories.is_empty()
    }

    fn name(&self, entry: BatchEntry) -> &CStr {
        name_at(&self.names, entry.start)
    }
}

fn name_at(names: &[u8], start: usize) -> &CStr {
    CStr::from_bytes_until_nul(&names[start..]).unwrap_or_default()
}

/// A stack of the names of subdirectories, packed into one buffer: one directory may have millions of them.
#[derive(Debug, Default)]
pub(super) struct NameStack {
    /// All names, each followed by a NUL.
    bytes: Vec<u8>,
}

impl NameStack {
    /// Makes a stack from which the first of `names` is popped first.
    pub(super) fn first_to_last<'a>(
        names: impl DoubleEndedIterator<Item = &'a CStr> + Clone,
    ) -> Self {
        // The names may take all the memory that a walk is allowed. A vector that grows would need twice as much.
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
        // The queue counts the names that are left, and another directory is read when few are. Without shrinking, each
        // stack would keep the memory of all its names until the last one is popped.
        if self.bytes.capacity() / 2 > self.bytes.len() + UNUSED_CAPACITY {
            self.bytes.shrink_to_fit();
        }
        CString::from_vec_with_nul(name).ok()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the size of the names in bytes, including their NULs.
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
        fs::symlink_metadata(path).expect("the entry exists").ino()
    }

    /// Returns a directory of two thousand files and a thousand directories, a batch of all of them, and the number of
    /// reads that it took. The names are so long that one read isn't enough.
    fn read_large_directory() -> (tempfile::TempDir, EntryBatch, usize) {
        let root = tempfile::tempdir().expect("a temporary directory");
        for n in 0..3000 {
            let path = root.path().join(format!("{n:0>200}"));
            if n % 3 == 0 {
                fs::create_dir(path).expect("a directory");
            } else {
                File::create(path).expect("a file");
            }
        }
        let directory = File::open(root.path()).expect("the directory opens");
        let (mut batch, mut buffer) = (EntryBatch::default(), ListingBuffer::new());
        let mut reads = 0;
        while batch
            .read(directory.as_fd(), &mut buffer)
            .expect("the directory is read")
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
        let mut names = NameStack::first_to_last(vec![name.as_c_str(); 10_000].into_iter());
        while names.pop().is_some() {
            let (kept, needed) = (names.bytes.capacity(), names.size());
            assert!(
                kept <= 2 * (needed + UNUSED_CAPACITY) + 1,
                "{kept} for {needed}"
            );
        }
    }

    #[test]
    fn a_batch_and_its_directories_names_are_bounded() {
        for kind in [FileType::Directory, FileType::RegularFile] {
            for length in [1, 255] {
                let name = CString::new(vec![b'n'; length]).expect("a name");
                let mut batch = EntryBatch::default();
                while !batch.is_full() {
                    batch.push(&name, 1, kind);
                }
                let directory_names_size = batch.directories().size();
                let bytes = batch.size() + directory_names_size;
                assert!(
                    (MAX_SIZE..MAX_SIZE + 1024).contains(&bytes),
                    "{kind:?} {length}: {bytes}"
                );
                assert_eq!(directory_names_size > 0, kind == FileType::Directory);
            }
        }
    }

    #[test]
    fn each_name_is_listed_once_with_its_type_in_inode_order() {
        let (root, batch, reads) = read_large_directory();
        assert!(reads > 3, "{reads}");
        let (mut directories, mut names) = (batch.directories(), BTreeSet::new());
        let mut inodes = Vec::new();
        while let Some(name) = directories.pop() {
            inodes.push(inode(root.path(), &name));
            assert!(root.path().join(name.to_str().expect("digits")).is_dir());
            names.insert(name);
        }
        assert!(inodes.len() == 1000 && inodes.is_sorted());
        let inodes = batch.non_directories().map(|name| inode(root.path(), name));
        let inodes = inodes.collect::<Vec<_>>();
        assert!(inodes.len() == 2000 && inodes.is_sorted());
        names.extend(batch.non_directories().map(CStr::to_owned));
        assert_eq!((names.len(), batch.len()), (3000, 3000));
    }

    #[test]
    fn chunks_have_each_file_once_in_the_same_order() {
        let (_root, mut batch, _) = read_large_directory();
        let files = batch
            .non_directories()
            .map(CStr::to_owned)
            .collect::<Vec<_>>();
        let mut taken = Vec::new();
        while let Some(chunk) = batch.take_chunk() {
            assert!(chunk.len() <= CHUNK_LEN && chunk.directories().is_empty());
            taken.extend(chunk.non_directories().map(CStr::to_owned));
            assert_eq!(batch.is_drained(), taken.len() == files.len());
        }
        assert_eq!(taken, files);
    }

    #[test]
    fn an_empty_directory_has_no_names_and_then_ends() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let directory = File::open(root.path()).expect("the directory opens");
        let (mut batch, mut buffer) = (EntryBatch::default(), ListingBuffer::new());
        let mut read = || batch.read(directory.as_fd(), &mut buffer);
        assert_eq!(read(), Ok(true));
        assert_eq!(read(), Ok(false));
        assert!(!batch.is_large() && batch.is_drained() && batch.take_chunk().is_none());
        assert_eq!(batch.directories().pop(), None::<CString>);
    }

    #[test]
    fn names_are_popped_unchanged_in_their_order() {
        let names = [c"a", c"long\nname", c"\xff", c"z"];
        let mut stack = NameStack::first_to_last(names.into_iter());
        assert_eq!(stack.size(), 2 + 10 + 2 + 2);
        for name in names {
            assert!(!stack.is_empty());
            assert_eq!(stack.pop().as_deref(), Some(name));
        }
        assert!(stack.is_empty());
        assert_eq!(stack.pop(), None);
    }
}

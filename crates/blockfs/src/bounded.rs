//! Reads files with a size limit, so that the writer of a file can't choose how much memory reading it takes.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The size limit in bytes for a file with a single value in `/proc` or `/sys`. Most are at most a page long.
pub const MAX_KERNEL_VALUE: u64 = 64 * 1024;

/// The initial buffer size in bytes. Most files are smaller, so one call reads the file and a second one finds its end.
const TYPICAL_SIZE: usize = 1023;

/// Reads a whole file; fails with [`io::ErrorKind::FileTooLarge`] if it has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Not `File::open`, which takes two calls with musl.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    read_open(&File::from(file), limit)
}

/// Reads a whole text file as [`read`] does; fails with [`io::ErrorKind::InvalidData`] if it isn't UTF-8.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads an open file from its current position to its end, with the same limit as [`read`].
pub fn read_open(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    read_all(file, TYPICAL_SIZE, limit)
}

/// Reads an open file as [`read_open`] does, if it probably has at most `size` bytes: one call then reads them, a
/// second one finds the end, and no more memory is allocated.
pub fn read_all(file: &File, size: usize, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size.saturating_add(1));
    while bytes.len() as u64 <= limit {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len());
        }
        match rustix::io::read(file, spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if bytes.len() as u64 > limit {
        let message = format!("the file has more than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1234").unwrap();
        assert_eq!(read_to_string(file.path(), 4).unwrap(), "1234");
        let error = read(file.path(), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "the file has more than 3 bytes");
    }

    /// `/dev/zero` reports a size of 0 and never ends.
    #[test]
    fn an_endless_file_is_too_large() {
        let error = read(Path::new("/dev/zero"), MAX_KERNEL_VALUE).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}

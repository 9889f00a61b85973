//! Reading no more of a file than it may hold: whoever writes it doesn't choose how much memory that
//! takes.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The size limit of a file in `/proc` or `/sys` with a single value, in bytes. Usually it is a page.
pub const KERNELS_WORD: u64 = 64 * 1024;

/// More than most of them hold: they are read in one call, and a second one sees the end.
const USUAL: usize = 1023;

/// The whole of a file; fails with [`io::ErrorKind::FileTooLarge`] where that is more than `most`
/// bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    // Not `File::open`, which with musl is two calls.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    read_open(&File::from(file), most)
}

/// The same of a text.
pub fn read_to_string(path: &Path, most: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, most)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The same of what is left of an open file.
pub fn read_open(file: &File, most: u64) -> io::Result<Vec<u8>> {
    read_all(file, USUAL, most)
}

/// The same of a file that is likely to have no more than `size` bytes: in one call, and a second one that sees
/// the end; and in no more memory than that.
pub fn read_all(file: &File, size: usize, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size.saturating_add(1));
    while bytes.len() as u64 <= most {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len());
        }
        match rustix::io::read(file, spare_capacity(&mut bytes)) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    if bytes.len() as u64 > most {
        let message = format!("it has more than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "1234").unwrap();
        assert_eq!(read_to_string(file.path(), 4).unwrap(), "1234");
        let error = read(file.path(), 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "it has more than 3 bytes");
    }

    /// It says that it is empty, and has no end.
    #[test]
    fn what_never_ends_is_not_read_for_ever() {
        let error = read(Path::new("/dev/zero"), KERNELS_WORD).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}

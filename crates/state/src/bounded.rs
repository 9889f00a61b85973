//! Reading no more of a file than it may hold: whoever writes it doesn't choose how much memory that
//! takes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Of a file in which the kernel says one thing, in `/proc` or `/sys`, where a page is usual.
pub const KERNELS_WORD: u64 = 64 * 1024;

/// More than most of them hold: they are read in one call, and a second one sees the end.
const USUAL: usize = 1024;

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
    let mut bytes = Vec::with_capacity(USUAL);
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
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

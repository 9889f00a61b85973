//! Reads a whole device to determine whether it is empty.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crust_blockfs::device::Device;
use rustix::fs::{Advice, OFlags, SeekFrom, fadvise, seek};
use rustix::io::Errno;

use super::decide::Contents;
use super::error::FormatError;

/// The number of bytes that are read at once.
const PIECE: usize = 1 << 20;

/// The size of a loop device is a multiple of this.
const SECTOR: u64 = 512;

/// Fails unless the device is as large as its image. If the image was truncated, the end of the device can't be read,
/// except as far as it is in the page cache.
pub(super) fn same_size(device: &Device, image: &Path) -> Result<(), FormatError> {
    let metadata = image.symlink_metadata();
    let length = metadata.map_err(|source| FormatError::Image {
        image: image.to_owned(),
        source,
    })?;
    let (image_size, device_size) = (length.len(), device.size()?);
    if image_size / SECTOR * SECTOR == device_size {
        return Ok(());
    }
    Err(FormatError::SizeMismatch {
        device: device.path().to_owned(),
        device_size,
        image: image.to_owned(),
        image_size,
    })
}

/// Searches for the first byte that isn't 0. Holes of the image are zeroes and are skipped.
pub(super) fn read(device: &Device, image: &Path) -> Contents {
    let read = open_both(device, image).and_then(|(device, image)| first_byte(&device, &image));
    match read {
        Ok(None) => Contents::Zeroes,
        Ok(Some(at)) => Contents::Data(at),
        Err(error) => Contents::Failed(error.to_string()),
    }
}

fn open_both(device: &Device, image: &Path) -> io::Result<(File, File)> {
    let image = File::options()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(image)?;
    let device = open(device)?;
    // From here on, data that was written to the device is in the image, and reads return what is in the image.
    device.sync_all()?;
    fadvise(&device, 0, None, Advice::DontNeed)?;
    Ok((device, image))
}

/// Opens the device through its open descriptor, so that it is the same device even if the path was replaced.
pub(super) fn open(device: &Device) -> io::Result<File> {
    File::open(format!("/proc/self/fd/{}", device.as_fd().as_raw_fd()))
}

fn first_byte(device: &File, image: &File) -> io::Result<Option<u64>> {
    let size = seek(device, SeekFrom::End(0))?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while let Some(data) = next_data(image, at)? {
        let end = seek(image, SeekFrom::Hole(data))?.min(size);
        at = data;
        while at < end {
            let length = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut piece[..length];
            device.read_exact_at(piece, at).map_err(|error| {
                let offset = format!("at {at}: {error}");
                io::Error::new(error.kind(), offset)
            })?;
            if let Some(found) = piece.iter().position(|byte| *byte != 0) {
                return Ok(Some(at + found as u64));
            }
            at += length as u64;
        }
        if at >= size {
            break;
        }
    }
    Ok(None)
}

/// Returns the position of the next data at or after `from`. `None` if there are only holes.
fn next_data(image: &File, from: u64) -> io::Result<Option<u64>> {
    match seek(image, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        // There are only holes up to the end.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches a file that is both the image and the device.
    fn first(writes: &[u64]) -> Option<u64> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        // Zeroes that are not a hole.
        file.write_all_at(&vec![0; 3 << 20], 5 << 20).unwrap();
        for at in writes {
            file.write_all_at(b"x", *at).unwrap();
        }
        first_byte(&file, &file).unwrap()
    }

    #[test]
    fn the_first_byte_is_found_at_any_position() {
        const END: u64 = (16 << 20) - 1;
        assert_eq!(first(&[]), None);
        for at in [
            0,
            1,
            511,
            4096,
            (5 << 20) - 1,
            5 << 20,
            (6 << 20) + 7,
            8 << 20,
            END,
        ] {
            assert_eq!(first(&[END, at]), Some(at));
        }
    }

    #[test]
    fn an_unreadable_device_is_not_empty() {
        let (device, image) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        image.write_all_at(&[0; 8192], 0).unwrap();
        device.set_len(8192).unwrap();
        assert_eq!(first_byte(&device, &image).unwrap(), None);
        // A device that is only open for writing can't be read.
        let name = format!("/proc/self/fd/{}", device.as_raw_fd());
        let unreadable = File::options().write(true).open(name).unwrap();
        assert!(first_byte(&unreadable, &image).is_err());
    }
}

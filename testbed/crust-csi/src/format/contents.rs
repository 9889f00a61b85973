//! Reads a whole device, to know that it is empty.

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

/// The number of bytes read at once.
const PIECE: usize = 1 << 20;

/// A loop device has whole ones of these.
const SECTOR: u64 = 512;

/// A device is as large as its image, or what it holds isn't what it held: the end of one that was cut
/// can't be read, but as far as it is in the page cache.
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

/// The first byte that isn't 0. Where the image has holes nothing needs to be read: they are
/// zeroes.
pub(super) fn read(device: &Device, image: &Path) -> Contents {
    let read = opened(device, image).and_then(|(device, image)| first_byte(&device, &image));
    match read {
        Ok(None) => Contents::Zeroes,
        Ok(Some(at)) => Contents::Data(at),
        Err(error) => Contents::Failed(error.to_string()),
    }
}

fn opened(device: &Device, image: &Path) -> io::Result<(File, File)> {
    let image = File::options()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(image)?;
    let device = open(device)?;
    // What was written to the device is in the image from here on, and what is read is the image's.
    device.sync_all()?;
    fadvise(&device, 0, None, Advice::DontNeed)?;
    Ok((device, image))
}

/// The device itself: by the node, so that it is the one that was found.
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

/// Returns the position of the next bytes that may be other than 0.
fn next_data(image: &File, from: u64) -> io::Result<Option<u64>> {
    match seek(image, SeekFrom::Data(from)) {
        Ok(at) => Ok(Some(at)),
        // Only holes from there on.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file stands for the device.
    fn first(writes: &[u64]) -> Option<u64> {
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 20).unwrap();
        // Zeroes that are no hole.
        file.write_all_at(&vec![0; 3 << 20], 5 << 20).unwrap();
        for at in writes {
            file.write_all_at(b"x", *at).unwrap();
        }
        first_byte(&file, &file).unwrap()
    }

    #[test]
    fn the_first_byte_is_found_wherever_it_is() {
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
    fn what_ends_too_early_is_no_zeroes() {
        let (device, image) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        image.write_all_at(&[0; 8192], 0).unwrap();
        device.set_len(8192).unwrap();
        assert_eq!(first_byte(&device, &image).unwrap(), None);
        // Opened for writing only it can't be read.
        let name = format!("/proc/self/fd/{}", device.as_raw_fd());
        let unreadable = File::options().write(true).open(name).unwrap();
        assert!(first_byte(&unreadable, &image).is_err());
    }
}

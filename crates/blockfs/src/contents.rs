//! Identifies the contents of a device on which [`probe`](crate::probe) finds no file system. An error message can then
//! warn an operator before they format a device that holds data.

mod table;

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::device::read_at;

pub use table::KnownFormat;
use table::{KNOWN_FORMATS, SignatureLocation};

/// The contents of a device that holds none of the file systems of [`probe`](crate::probe::probe).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// The device has the signature of a known format.
    Known(&'static KnownFormat),
    /// The device has no known signature, but it isn't empty.
    Data {
        /// The offset in bytes of the first byte found that isn't zero.
        offset: u64,
    },
    /// The device has no known signature, and only zeroes where a file system has its first blocks or a backup of its
    /// superblock. The rest wasn't read, so the device may still hold data.
    Empty,
}

/// Identifies the contents of an open device or image of `size` bytes. Reads about 20 MiB at most. Fails with the error
/// of pread(2).
pub fn identify(device: impl AsFd, size: u64) -> Result<Contents, Errno> {
    let device = device.as_fd();
    for format in KNOWN_FORMATS {
        for location in format.signatures {
            if has_signature(device, size, location)? {
                return Ok(Contents::Known(format));
            }
        }
    }
    let first = first_nonzero_byte(device, size)?;
    Ok(first.map_or(Contents::Empty, |offset| Contents::Data { offset }))
}

fn has_signature(
    device: impl AsFd,
    size: u64,
    location: &SignatureLocation,
) -> Result<bool, Errno> {
    let mut found = [0; table::LONGEST_MAGIC];
    let found = &mut found[..location.magic.len()];
    for offset in location.offsets.on_device(size) {
        if read_at(&device, found, offset)? && *found == *location.magic {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The length of one read in bytes.
const READ_SIZE: usize = 64 << 10;

/// Returns the ranges in which a file system that has lost its first superblock still has data, as offset and length in
/// bytes:
///
/// - the beginning, which holds most signatures, and the end, where GPT, md and zfs have theirs;
/// - ext4's first backup superblock, with blocks of 1, 2 and 4 KiB (8, 32 and 128 MiB), and btrfs's copies at 64 MiB
///   and 256 GiB (btrfs(5));
/// - the end of each 64th part: xfs has a superblock in each allocation group, and mkfs.xfs makes 4 of them, or 16 or
///   32 on striped devices.
fn sampled_ranges(size: u64) -> impl Iterator<Item = (u64, u64)> {
    const MIB: u64 = 1 << 20;
    const PARTS: u64 = 64;
    let backups = [8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 << 30];
    let groups = (1..PARTS).map(move |part| (size / PARTS * part).saturating_sub(READ_SIZE as u64));
    let inner = backups.into_iter().chain(groups);
    let ends = [(0, 2 * MIB), (size.saturating_sub(MIB), MIB)];
    ends.into_iter().chain(inner.map(|at| (at, MIB / 4)))
}

/// Returns the offset of the first byte in the sampled ranges that isn't zero.
fn first_nonzero_byte(device: impl AsFd, size: u64) -> Result<Option<u64>, Errno> {
    let mut buffer = vec![0; READ_SIZE];
    for (start, length) in sampled_ranges(size) {
        let end = start.saturating_add(length).min(size);
        let mut offset = start;
        while offset < end {
            let length = usize::try_from(end - offset)
                .unwrap_or(READ_SIZE)
                .min(READ_SIZE);
            let buffer = &mut buffer[..length];
            if !read_at(&device, buffer, offset)? {
                break;
            }
            if let Some(at) = buffer.iter().position(|byte| *byte != 0) {
                return Ok(Some(offset + at as u64));
            }
            offset += length as u64;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;

//! Identifies the contents of a device that [`probe`](crate::probe) doesn't know, so that no error
//! message leads an operator to format a device that has data on it.

mod table;

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::probe::read_at;

pub use table::Known;
use table::{KNOWN, Place};

/// The contents of a device that holds none of the file systems of [`probe`](crate::probe::probe).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// A signature that is in the table.
    Known(&'static Known),
    /// No signature, and data.
    Data {
        /// Offset of the first byte found that isn't zero.
        at: u64,
    },
    /// No signature, and only zeroes wherever a file system has its first blocks or a backup of its
    /// superblock. What lies between these places wasn't read.
    Empty,
}

/// Identifies the contents of an open device (or image) of `size` bytes. Reads a few MiB at most.
/// Returns the error of pread(2).
pub fn look(device: impl AsFd, size: u64) -> Result<Contents, Errno> {
    let device = device.as_fd();
    for known in KNOWN {
        for place in known.places {
            if is_there(device, size, place)? {
                return Ok(Contents::Known(known));
            }
        }
    }
    let first = first_data(device, size)?;
    Ok(first.map_or(Contents::Empty, |at| Contents::Data { at }))
}

fn is_there(device: impl AsFd, size: u64, place: &Place) -> Result<bool, Errno> {
    let mut found = [0; table::LONGEST];
    let found = &mut found[..place.magic.len()];
    for offset in place.at.offsets(size) {
        if read_at(&device, found, offset)? && *found == *place.magic {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Length of one read in bytes.
const PIECE: usize = 64 << 10;

/// Returns the ranges in which a file system without its first superblock still has data, as offset and
/// length in bytes: the beginning, which holds most signatures; ext4's first backups with blocks of
/// 1 KiB (8 MiB) and of 4 KiB (128 MiB); the copies of btrfs at 64 MiB and 256 GiB (btrfs(5)); the end,
/// where GPT, md and zfs have theirs.
fn samples(size: u64) -> [(u64, u64); 6] {
    const MIB: u64 = 1 << 20;
    [
        (0, 2 * MIB),
        (8 * MIB, MIB / 4),
        (64 * MIB, MIB / 4),
        (128 * MIB, MIB / 4),
        (256 << 30, MIB / 4),
        (size.saturating_sub(MIB), MIB),
    ]
}

/// Returns the offset of the first byte in the samples that isn't zero.
fn first_data(device: impl AsFd, size: u64) -> Result<Option<u64>, Errno> {
    let mut piece = vec![0; PIECE];
    for (start, length) in samples(size) {
        let end = start.saturating_add(length).min(size);
        let mut offset = start;
        while offset < end {
            let length = usize::try_from(end - offset).unwrap_or(PIECE).min(PIECE);
            let piece = &mut piece[..length];
            if !read_at(&device, piece, offset)? {
                break;
            }
            if let Some(at) = piece.iter().position(|byte| *byte != 0) {
                return Ok(Some(offset + at as u64));
            }
            offset += length as u64;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;

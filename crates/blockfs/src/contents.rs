//! Identifies the contents of a device that [`probe`](crate::probe) doesn't know, so that no error
//! message leads an operator to format a device that has data on it.

mod table;

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::device::read_at;

pub use table::Known;
use table::{KNOWN, SignaturePlace};

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
    /// superblock. What lies between these places wasn't read, so this is no reason to format the device.
    Empty,
}

/// Identifies the contents of an open device (or image) of `size` bytes. Reads about 20 MiB at most.
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

fn is_there(device: impl AsFd, size: u64, place: &SignaturePlace) -> Result<bool, Errno> {
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
/// length in bytes:
///
/// - the beginning, which holds most signatures, and the end, where GPT, md and zfs have theirs;
/// - ext4's first backup, with blocks of 1, 2 and 4 KiB (8, 32 and 128 MiB), and the copies of btrfs at
///   64 MiB and 256 GiB (btrfs(5));
/// - each 64th part, for xfs has a superblock in each allocation group, and mkfs.xfs makes 4 of them, or on
///   striped devices 16 or 32.
fn samples(size: u64) -> impl Iterator<Item = (u64, u64)> {
    const MIB: u64 = 1 << 20;
    const PARTS: u64 = 64;
    let backups = [8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 256 << 30];
    let groups = (1..PARTS).map(move |part| (size / PARTS * part).saturating_sub(PIECE as u64));
    let places = backups.into_iter().chain(groups);
    let ends = [(0, 2 * MIB), (size.saturating_sub(MIB), MIB)];
    ends.into_iter().chain(places.map(|at| (at, MIB / 4)))
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

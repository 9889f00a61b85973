//! Loop devices (loop(4)): what they show, and the ioctls that make them show it.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{Direction, Opcode, ioctl, opcode};

use super::{Plain, Request, request};
use crate::{DeviceNumber, DiskSeq};

/// `LOOP_GET_STATUS64`. Opcodes of loop devices are from before these had a size.
const GET_STATUS: Opcode = opcode::none(b'L', 5);
/// `LOOP_CLR_FD`
const CLEAR: Opcode = opcode::none(b'L', 1);
/// `LOOP_SET_STATUS64`
const SET_STATUS: Opcode = opcode::none(b'L', 4);
/// `LOOP_SET_CAPACITY`
const SET_CAPACITY: Opcode = opcode::none(b'L', 7);
/// `LOOP_CONFIGURE`
const CONFIGURE: Opcode = opcode::none(b'L', 10);
/// `LOOP_CTL_GET_FREE`
const GET_FREE: Opcode = opcode::none(b'L', 0x82);
/// `BLKROSET`
const SET_READ_ONLY: Opcode = opcode::none(0x12, 93);
/// `BLKROGET`
const GET_READ_ONLY: Opcode = opcode::none(0x12, 94);

/// `LO_FLAGS_READ_ONLY`
pub(crate) const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`
pub(crate) const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_DIRECT_IO`
pub(crate) const DIRECT_IO: u32 = 16;

/// `struct loop_info64` of `include/uapi/linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers: [u32; 3],
    flags: u32,
    name: [u8; 64],
    others: [u8; 96],
    init: [u64; 2],
}

impl Info {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        numbers: [0; 3],
        flags: 0,
        name: [0; 64],
        others: [0; 96],
        init: [0; 2],
    };
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

impl Plain for Info {}
impl Plain for Config {}
/// A C int.
impl Plain for i32 {}

/// The file behind a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopFile {
    /// The device of its file system, as the kernel writes it for user space.
    pub(crate) device: u64,
    /// Its inode there.
    pub(crate) inode: u64,
    /// It is a block device itself.
    pub(crate) disk: Option<DeviceNumber>,
}

/// The status of a loop device, as the device itself returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    pub(crate) file: LoopFile,
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// How much of the file it shows, in bytes; 0 is all.
    pub(crate) size_limit: u64,
    /// `LO_FLAGS_…`
    pub(crate) flags: u32,
}

/// `LOOP_GET_STATUS64`: the kernel asks the file system of the file, whatever its path is by now and
/// whoever's mount namespace it is in. Where that hangs, so does this. ENXIO when it shows nothing.
pub(crate) fn loop_status(device: impl AsFd) -> Result<LoopStatus, Errno> {
    let info = info(device)?;
    Ok(LoopStatus {
        file: LoopFile {
            device: info.device,
            inode: info.inode,
            disk: (info.rdevice != 0).then(|| number(info.rdevice)),
        },
        offset: info.offset,
        size_limit: info.size_limit,
        flags: info.flags,
    })
}

fn info(device: impl AsFd) -> Result<Info, Errno> {
    let mut info = Info::EMPTY;
    call(device, GET_STATUS, &mut info)?;
    Ok(info)
}

/// `LOOP_CONFIGURE` (Linux 5.8): the device shows the file from now on. `name` is for losetup(8), which
/// cuts it as well. Errors: EBUSY where it shows one already, or somebody has it for himself;
/// ENOTTY and EINVAL on an older kernel.
pub(crate) fn configure_loop(
    device: impl AsFd,
    file: impl AsFd,
    name: &Path,
    flags: u32,
    block_size: u32,
) -> Result<(), Errno> {
    let mut info = Info {
        flags,
        ..Info::EMPTY
    };
    let name = name.as_os_str().as_bytes();
    // The last byte stays 0.
    let length = name.len().min(info.name.len() - 1);
    info.name[..length].copy_from_slice(&name[..length]);
    let file = file.as_fd();
    let mut config = Config {
        // An open descriptor is never negative.
        file: file.as_raw_fd().cast_unsigned(),
        block_size,
        info,
        reserved: [0; 8],
    };
    call(device, CONFIGURE, &mut config)?;
    Ok(())
}

/// `LOOP_CLR_FD`: at once where nobody else has the device open, else when the last one closes it.
/// ENXIO when it shows nothing.
pub(crate) fn clear_loop(device: impl AsFd) -> Result<(), Errno> {
    call(device, CLEAR, &mut 0)?;
    Ok(())
}

/// `LOOP_SET_STATUS64`: the device no longer goes when the last one closes it. ENXIO when it shows
/// nothing, or is going.
pub(crate) fn keep_loop(device: impl AsFd) -> Result<(), Errno> {
    let mut info = info(&device)?;
    info.flags &= !AUTOCLEAR;
    call(device, SET_STATUS, &mut info)?;
    Ok(())
}

/// `LOOP_SET_CAPACITY`: the device is as large as its file is now. ENXIO when it shows nothing.
pub(crate) fn refresh_loop(device: impl AsFd) -> Result<(), Errno> {
    call(device, SET_CAPACITY, &mut 0)?;
    Ok(())
}

/// `LOOP_CTL_GET_FREE` of `/dev/loop-control`: the number of a loop device that shows nothing, made
/// where there was none. It isn't kept for the caller.
pub(crate) fn free_loop(control: impl AsFd) -> Result<u32, Errno> {
    let number = call(control, GET_FREE, &mut 0)?;
    u32::try_from(number).map_err(|_| Errno::RANGE)
}

/// `BLKROSET`, of any block device. It outlives what a loop device shows.
pub(crate) fn set_read_only(device: impl AsFd, read_only: bool) -> Result<(), Errno> {
    call(device, SET_READ_ONLY, &mut i32::from(read_only))?;
    Ok(())
}

/// `BLKROGET`, of any block device: whether it refuses writes.
pub(crate) fn is_read_only(device: impl AsFd) -> Result<bool, Errno> {
    let mut is_read_only: i32 = 0;
    call(device, GET_READ_ONLY, &mut is_read_only)?;
    Ok(is_read_only != 0)
}

/// `BLKGETDISKSEQ` (Linux 5.15), of any block device: a partition's is its disk's.
pub(crate) fn disk_seq(device: impl AsFd) -> Result<DiskSeq, Errno> {
    let mut number: u64 = 0;
    request(device, Direction::Read, 0x12, 128, &mut number)?;
    Ok(DiskSeq::new(number))
}

/// An ioctl of this room: what is read and written is what its constant says there.
fn call<T: Plain>(device: impl AsFd, opcode: Opcode, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: the opcodes of this module, and only they come here, are for a `struct loop_info64`
    // (GET_STATUS, SET_STATUS), a `struct loop_config` (CONFIGURE), an int (SET_READ_ONLY,
    // GET_READ_ONLY), or
    // nothing (the others), and each function above passes that. Any bytes make a `T` (`Plain`).
    // To other devices the numbers mean nothing (ENOTTY). `device` is open for the length of the call.
    unsafe { ioctl(device, Request { opcode, argument }) }
}

/// Decodes a device number that the kernel has encoded (`new_encode_dev`).
pub(super) fn number(encoded: u64) -> DeviceNumber {
    let (major, minor) = (
        (encoded >> 8) & 0xfff,
        (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    );
    let part = |part| u32::try_from(part).unwrap_or_default();
    DeviceNumber::new(part(major), part(minor))
}

/// The other way round.
pub(crate) fn encoded(device: DeviceNumber) -> u64 {
    let (major, minor) = (u64::from(device.major()), u64::from(device.minor()));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_info64_and_loop_config_have_the_kernels_sizes() {
        assert_eq!([size_of::<Info>(), size_of::<Config>()], [232, 304]);
    }

    #[test]
    fn numbers_are_read_as_they_are_written() {
        for (device, expected) in [((7, 3), 0x703), ((259, 70_000), 0x1111_0370)] {
            let device = DeviceNumber::new(device.0, device.1);
            assert_eq!(encoded(device), expected, "{device}");
            assert_eq!(number(expected), device);
        }
    }
}

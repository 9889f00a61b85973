//! The ioctls of loop devices (loop(4)), and those of block devices that concern them.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{Direction, Opcode, ioctl, opcode};

use super::{AnyBitPattern, Request, request};
use crate::{DeviceNumber, DiskSeq};

/// `LOOP_GET_STATUS64`. The opcodes of loop devices are older than the scheme that encodes the size of the argument.
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
    crypt_name_and_key: [u8; 96],
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
        crypt_name_and_key: [0; 96],
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

impl AnyBitPattern for Info {}
impl AnyBitPattern for Config {}
impl AnyBitPattern for i32 {}

/// The file behind a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopFile {
    /// The device of the file's file system, in the kernel's encoding.
    pub(crate) device: u64,
    /// The file's inode number.
    pub(crate) inode: u64,
    /// The number of the block device if the file is a device node; `None` for a regular file.
    pub(crate) disk: Option<DeviceNumber>,
}

/// The status of a loop device, as the device itself reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    pub(crate) file: LoopFile,
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// The length of the part of the file that is used, in bytes; 0 means up to the end.
    pub(crate) size_limit: u64,
    /// The flags `LO_FLAGS_…`.
    pub(crate) flags: u32,
}

/// Returns the status of a loop device (`LOOP_GET_STATUS64`). Fails with ENXIO if no file is attached.
///
/// The kernel queries the file system of the file, whatever the file's path is by now and in whatever mount namespace.
/// If that file system hangs, so does this call.
pub(crate) fn loop_status(device: impl AsFd) -> Result<LoopStatus, Errno> {
    let info = info(device)?;
    Ok(LoopStatus {
        file: LoopFile {
            device: info.device,
            inode: info.inode,
            disk: (info.rdevice != 0).then(|| decode_device(info.rdevice)),
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

/// Attaches a file to a loop device (`LOOP_CONFIGURE`, Linux 5.8). losetup(8) shows `name`, which is cut to 63 bytes as
/// losetup(8) itself does.
///
/// Fails with EBUSY if a file is attached already or another holder has opened the device exclusively, and with ENOTTY
/// or EINVAL on an older kernel.
pub(crate) fn attach_loop(
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

/// Detaches the file of a loop device (`LOOP_CLR_FD`): at once if no other descriptor of the device is open, otherwise
/// when the last one is closed. Fails with ENXIO if no file is attached.
pub(crate) fn detach_loop(device: impl AsFd) -> Result<(), Errno> {
    call(device, CLEAR, &mut 0)?;
    Ok(())
}

/// Keeps a loop device from being detached when its last descriptor is closed (`LOOP_SET_STATUS64`). Fails with ENXIO
/// if no file is attached, or if the file is being detached.
pub(crate) fn clear_autoclear(device: impl AsFd) -> Result<(), Errno> {
    let mut info = info(&device)?;
    info.flags &= !AUTOCLEAR;
    call(device, SET_STATUS, &mut info)?;
    Ok(())
}

/// Sets the size of a loop device to that of its file (`LOOP_SET_CAPACITY`). Fails with ENXIO if no file is attached.
pub(crate) fn update_loop_size(device: impl AsFd) -> Result<(), Errno> {
    call(device, SET_CAPACITY, &mut 0)?;
    Ok(())
}

/// Returns the minor number of a loop device without a file (`LOOP_CTL_GET_FREE` of `/dev/loop-control`). The kernel
/// creates a device if all have files. The device isn't reserved for the caller.
pub(crate) fn find_free_loop(control: impl AsFd) -> Result<u32, Errno> {
    let number = call(control, GET_FREE, &mut 0)?;
    u32::try_from(number).map_err(|_| Errno::RANGE)
}

/// Makes a block device read-only or writable (`BLKROSET`). A loop device stays so when its file is detached.
pub(crate) fn set_read_only(device: impl AsFd, read_only: bool) -> Result<(), Errno> {
    call(device, SET_READ_ONLY, &mut i32::from(read_only))?;
    Ok(())
}

/// Returns whether a block device refuses writes (`BLKROGET`).
pub(crate) fn is_read_only(device: impl AsFd) -> Result<bool, Errno> {
    let mut is_read_only: i32 = 0;
    call(device, GET_READ_ONLY, &mut is_read_only)?;
    Ok(is_read_only != 0)
}

/// Returns the sequence number of a disk (`BLKGETDISKSEQ`, Linux 5.15). A partition has the number of its disk.
pub(crate) fn disk_seq(device: impl AsFd) -> Result<DiskSeq, Errno> {
    let mut number: u64 = 0;
    request(device, Direction::Read, 0x12, 128, &mut number)?;
    Ok(DiskSeq::new(number))
}

/// Makes one of the ioctls of this module. The type of the argument must be the one that belongs to the opcode.
fn call<T: AnyBitPattern>(
    device: impl AsFd,
    opcode: Opcode,
    argument: &mut T,
) -> Result<i32, Errno> {
    // SAFETY: only opcodes of this module are passed. They take a `struct loop_info64` (GET_STATUS, SET_STATUS), a
    // `struct loop_config` (CONFIGURE), an int (SET_READ_ONLY, GET_READ_ONLY), or nothing (the others), and each
    // function above passes that. Any bytes are a valid `T` (`AnyBitPattern`). Other devices don't know the opcodes
    // (ENOTTY). `device` is open during the call.
    unsafe { ioctl(device, Request { opcode, argument }) }
}

/// Decodes a device number in the kernel's encoding (`new_encode_dev`).
pub(super) fn decode_device(encoded: u64) -> DeviceNumber {
    let (major, minor) = (
        (encoded >> 8) & 0xfff,
        (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00),
    );
    let part = |part| u32::try_from(part).unwrap_or_default();
    DeviceNumber::new(part(major), part(minor))
}

/// Encodes a device number as the kernel does (`new_encode_dev`).
pub(crate) fn encode_device(device: DeviceNumber) -> u64 {
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
    fn device_numbers_are_encoded_as_the_kernel_does() {
        for (device, expected) in [((7, 3), 0x703), ((259, 70_000), 0x1111_0370)] {
            let device = DeviceNumber::new(device.0, device.1);
            assert_eq!(encode_device(device), expected, "{device}");
            assert_eq!(decode_device(expected), device);
        }
    }
}

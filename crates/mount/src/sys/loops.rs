//! What a loop device shows (loop(4)).

use std::os::fd::AsFd;

use crust_state::DeviceNumber;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, ioctl, opcode};

use super::{Plain, Request};

/// `LOOP_GET_STATUS64`, from before opcodes had a size.
pub(super) const GET_STATUS: Opcode = opcode::none(b'L', 5);

/// `struct loop_info64` of `include/uapi/linux/loop.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    numbers: [u32; 4],
    names: [u8; 160],
    init: [u64; 2],
}

impl Plain for Info {}

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

/// `LOOP_GET_STATUS64`: the kernel asks the file system of the file, whatever its path is by now and
/// whoever's mount namespace it is in. Where that hangs, so does this.
pub(crate) fn loop_file(device: impl AsFd) -> Result<LoopFile, Errno> {
    let mut info = Info {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        numbers: [0; 4],
        names: [0; 160],
        init: [0; 2],
    };
    let request = Request {
        opcode: GET_STATUS,
        argument: &mut info,
    };
    // SAFETY: a loop device writes a `struct loop_info64`, which `Info` is; to others the number
    // means nothing (ENOTTY), and `device` is open for the length of the call.
    unsafe { ioctl(device, request) }?;
    Ok(LoopFile {
        device: info.device,
        inode: info.inode,
        disk: (info.rdevice != 0).then(|| number(info.rdevice)),
    })
}

/// As `new_encode_dev` of the kernel writes a device.
fn number(encoded: u64) -> DeviceNumber {
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
    fn the_kernel_and_we_agree_on_the_size_of_loop_info64() {
        assert_eq!(size_of::<Info>(), 232);
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

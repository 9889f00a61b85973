//! The ioctls that grow mounted file systems, and those that report their size. `file` is any directory or regular file
//! of the file system, open for reading (not `O_PATH`).

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::Direction;

use super::{AnyBitPattern, request};

impl AnyBitPattern for u64 {}
impl AnyBitPattern for XfsGeometry {}
impl AnyBitPattern for XfsGrowth {}
impl AnyBitPattern for BtrfsInfo {}
impl AnyBitPattern for BtrfsDevice {}
impl AnyBitPattern for BtrfsName {}

/// Grows an ext4 to a size of `blocks` in total (`EXT4_IOC_RESIZE_FS`). Fails with EPERM without `CAP_SYS_RESOURCE`, or
/// if the file system has recorded errors.
pub(crate) fn ext4_resize(file: impl AsFd, mut blocks: u64) -> Result<(), Errno> {
    request(file, Direction::Write, b'f', 16, &mut blocks)?;
    Ok(())
}

/// `struct xfs_fsop_geom`. Fields that aren't needed are combined.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct XfsGeometry {
    /// The block size in bytes.
    pub(crate) block_size: u32,
    _extent_and_group: [u32; 2],
    pub(crate) allocation_groups: u32,
    _log_to_inode: [u32; 3],
    /// The largest share of the space that inodes may take, in percent.
    pub(crate) inode_max_percent: u32,
    /// The size of the file system in blocks.
    pub(crate) data_blocks: u64,
    _rest: [u64; 27],
}

/// Returns the geometry of an XFS (`XFS_IOC_FSGEOMETRY` in the version of Linux 5.2).
pub(crate) fn xfs_geometry(file: impl AsFd) -> Result<XfsGeometry, Errno> {
    let mut geometry = XfsGeometry {
        block_size: 0,
        _extent_and_group: [0; 2],
        allocation_groups: 0,
        _log_to_inode: [0; 3],
        inode_max_percent: 0,
        data_blocks: 0,
        _rest: [0; 27],
    };
    request(file, Direction::Read, b'X', 126, &mut geometry)?;
    Ok(geometry)
}

/// `struct xfs_growfs_data`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct XfsGrowth {
    blocks: u64,
    inode_max_percent: u32,
    _padding: u32,
}

/// Grows an XFS to a size of `blocks` in total, and sets the largest share of inodes (`XFS_IOC_FSGROWFSDATA`).
pub(crate) fn xfs_grow(file: impl AsFd, blocks: u64, inode_max_percent: u32) -> Result<(), Errno> {
    let mut growth = XfsGrowth {
        blocks,
        inode_max_percent,
        _padding: 0,
    };
    request(file, Direction::Write, b'X', 110, &mut growth)?;
    Ok(())
}

/// `struct btrfs_ioctl_fs_info_args`. Fields that aren't needed are combined.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BtrfsInfo {
    /// The largest device id.
    pub(crate) max_device_id: u64,
    /// The number of devices.
    pub(crate) devices: u64,
    _uuid: [u8; 16],
    _node_size: u32,
    /// The sector size in bytes.
    pub(crate) sector_size: u32,
    _rest: [u64; 123],
}

/// Returns the properties of a btrfs (`BTRFS_IOC_FS_INFO`).
pub(crate) fn btrfs_info(file: impl AsFd) -> Result<BtrfsInfo, Errno> {
    let mut info = BtrfsInfo {
        max_device_id: 0,
        devices: 0,
        _uuid: [0; 16],
        _node_size: 0,
        sector_size: 0,
        _rest: [0; 123],
    };
    request(file, Direction::Read, 0x94, 31, &mut info)?;
    Ok(info)
}

/// The arguments of `BTRFS_IOC_DEV_INFO`: `struct btrfs_ioctl_dev_info_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BtrfsDevice {
    id: u64,
    _uuid_and_used: [u64; 3],
    total_bytes: u64,
    _rest: [u64; 507],
}

/// Returns the number of bytes of a device that the file system uses (`BTRFS_IOC_DEV_INFO`).
pub(crate) fn btrfs_device_bytes(file: impl AsFd, device_id: u64) -> Result<u64, Errno> {
    let mut device = BtrfsDevice {
        id: device_id,
        _uuid_and_used: [0; 3],
        total_bytes: 0,
        _rest: [0; 507],
    };
    request(file, Direction::ReadWrite, 0x94, 30, &mut device)?;
    Ok(device.total_bytes)
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BtrfsName {
    _fd: i64,
    name: [u8; 4088],
}

/// Resizes a btrfs on a device (`BTRFS_IOC_RESIZE`). `size` is `<device id>:<bytes>`. Fails with EBUSY if another
/// operation on the whole file system is running, such as a balance. The kernel reports that with a positive result.
pub(crate) fn btrfs_resize(file: impl AsFd, size: &str) -> Result<(), Errno> {
    let mut argument = BtrfsName {
        _fd: 0,
        name: [0; 4088],
    };
    // The last byte stays 0.
    let capacity = argument.name.len() - 1;
    let name = argument.name[..capacity].get_mut(..size.len());
    name.ok_or(Errno::NAMETOOLONG)?
        .copy_from_slice(size.as_bytes());
    match request(file, Direction::Write, 0x94, 3, &mut argument)? {
        0 => Ok(()),
        _ => Err(Errno::BUSY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ioctl_arguments_have_the_kernels_sizes() {
        // These sizes are in the opcodes in the kernel's headers, fs/xfs/libxfs/xfs_fs.h and
        // include/uapi/linux/btrfs.h.
        let sizes = [size_of::<XfsGeometry>(), size_of::<XfsGrowth>()];
        assert_eq!(sizes, [256, 16]);
        let sizes = [size_of::<BtrfsInfo>(), size_of::<BtrfsDevice>()];
        assert_eq!(sizes, [1024, 4096]);
        assert_eq!(size_of::<BtrfsName>(), 4096);
    }

    #[test]
    fn a_file_system_that_does_not_know_the_ioctl_returns_enotty() {
        let fd = std::fs::File::open("/proc").expect("the directory opens");
        assert_eq!(ext4_resize(&fd, 1), Err(Errno::NOTTY));
        assert_eq!(xfs_geometry(&fd).err(), Some(Errno::NOTTY));
        assert_eq!(btrfs_resize(&fd, "1:1"), Err(Errno::NOTTY));
        let long = "1".repeat(4088);
        assert_eq!(btrfs_resize(&fd, &long), Err(Errno::NAMETOOLONG));
    }
}

//! `XFS_IOC_BULKSTAT` (`fs/xfs/libxfs/xfs_fs.h`), which reads many inodes of an XFS with one call.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Direction, ioctl, opcode};

use super::{AnyBitPattern, Request};

/// `XFS_BULK_IREQ_AGNO`, which restricts the call to one allocation group.
const ONE_GROUP: u32 = 1;
/// The number of inodes that one call returns.
const BATCH_SIZE: u32 = 256;

/// `struct xfs_bulk_ireq`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    /// The number of the inode to start at. The kernel sets it to the inode to continue at.
    next_inode: u64,
    flags: u32,
    capacity: u32,
    count: u32,
    allocation_group: u32,
    _reserved: [u64; 5],
}

/// `struct xfs_bulkstat`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inode {
    /// The inode number (`st_ino` of stat(2)).
    pub(crate) number: u64,
    _size_to_times: [u64; 7],
    _generation: u32,
    _user: u32,
    pub(crate) group: u32,
    _project_to_version: [u32; 13],
    _sick_and_checked: u32,
    /// The mode (`st_mode` of stat(2)).
    pub(crate) mode: u16,
    _padding: u16,
    _rest: [u64; 7],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct InodeBatch {
    head: Head,
    inodes: [Inode; BATCH_SIZE as usize],
}

impl AnyBitPattern for InodeBatch {}

/// A cursor over the inodes in use of an allocation group, without those that are internal to the file system.
pub(crate) struct Inodes {
    batch: Box<InodeBatch>,
}

impl Inodes {
    #[expect(
        clippy::large_stack_arrays,
        reason = "it takes a fortieth of a thread's stack until it is moved to the heap"
    )]
    pub(crate) fn new(allocation_group: u32) -> Self {
        let head = Head {
            flags: ONE_GROUP,
            capacity: BATCH_SIZE,
            allocation_group,
            ..Head::default()
        };
        Self {
            batch: Box::new(InodeBatch {
                head,
                inodes: [Inode::default(); BATCH_SIZE as usize],
            }),
        }
    }

    /// Returns the next inodes; none at the end. `file` is any directory or regular file of the file system, open for
    /// reading (not `O_PATH`). Fails with EPERM without `CAP_SYS_ADMIN`, and with EINVAL on an idmapped mount.
    pub(crate) fn next(&mut self, file: impl AsFd) -> Result<&[Inode], Errno> {
        let argument = &mut *self.batch;
        let opcode = opcode::from_components(Direction::Read, b'X', 127, size_of::<Head>());
        // SAFETY: XFS copies a head in and out, of the size in the opcode. After the head, XFS writes at most as many
        // inodes as `capacity` says, which is the length of the array. Any bytes are a valid batch (`AnyBitPattern`).
        // Other file systems return ENOTTY. `file` is open during the call.
        unsafe { ioctl(file, Request { opcode, argument }) }?;
        let count = self.batch.head.count as usize;
        self.batch.inodes.get(..count).ok_or(Errno::PROTO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_layout() {
        // These sizes are in the opcode in the kernel's header, and in xfs_check_ondisk_structs().
        assert_eq!((size_of::<Head>(), size_of::<Inode>()), (64, 192));
        assert_eq!(std::mem::offset_of!(Inode, number), 0);
        assert_eq!(std::mem::offset_of!(Inode, mode), 132);
        assert_eq!(std::mem::offset_of!(Inode, group), 72);
        assert_eq!(std::mem::offset_of!(InodeBatch, inodes), 64);
    }

    #[test]
    fn other_file_systems_return_enotty() {
        let proc = std::fs::File::open("/proc").expect("the directory opens");
        assert_eq!(Inodes::new(0).next(&proc).err(), Some(Errno::NOTTY));
    }
}

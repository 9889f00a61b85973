//! `XFS_IOC_BULKSTAT` (`fs/xfs/libxfs/xfs_fs.h`): the inodes of an XFS by their numbers,
//! many with one call.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Direction, ioctl, opcode};

use super::{Plain, Request};

/// `XFS_BULK_IREQ_AGNO`: of one allocation group.
const OF_GROUP: u32 = 1;
/// So many with one call.
const MOST: u32 = 256;

/// `struct xfs_bulk_ireq`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    /// The inode to begin at, and afterwards the one to go on at.
    inode: u64,
    flags: u32,
    wanted: u32,
    got: u32,
    allocation_group: u32,
    _reserved: [u64; 5],
}

/// `struct xfs_bulkstat`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Inode {
    /// The number, `st_ino` of stat(2).
    pub(crate) number: u64,
    _size_to_times: [u64; 7],
    _generation: u32,
    _user: u32,
    pub(crate) group: u32,
    _project_to_version: [u32; 13],
    _sick_and_checked: u32,
    /// The mode, `st_mode` of stat(2).
    pub(crate) mode: u16,
    _padding: u16,
    _rest: [u64; 7],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Batch {
    head: Head,
    inodes: [Inode; MOST as usize],
}

impl Plain for Batch {}

/// The inodes of an allocation group that are in use, from the first on; but for those that the file
/// system has for itself.
pub(crate) struct Inodes {
    batch: Box<Batch>,
}

impl Inodes {
    #[expect(
        clippy::large_stack_arrays,
        reason = "a fortieth of a thread's stack, for the moment of the move"
    )]
    pub(crate) fn new(allocation_group: u32) -> Self {
        let head = Head {
            flags: OF_GROUP,
            wanted: MOST,
            allocation_group,
            ..Head::default()
        };
        Self {
            batch: Box::new(Batch {
                head,
                inodes: [Inode::default(); MOST as usize],
            }),
        }
    }

    /// The next ones; none at the end. `file` is any directory or regular file of the file system,
    /// open for reading (not `O_PATH`). Errors: EPERM without `CAP_SYS_ADMIN`, EINVAL on a mount
    /// with other owners than the file system's (idmapped).
    pub(crate) fn next(&mut self, file: impl AsFd) -> Result<&[Inode], Errno> {
        let argument = &mut *self.batch;
        let opcode = opcode::from_components(Direction::Read, b'X', 127, size_of::<Head>());
        // SAFETY: an XFS copies a head in and out, as large as the opcode says, and writes no more
        // inodes behind it than the head wants, which is as many as there are; any bytes make a
        // batch (`Plain`). One that doesn't know it says ENOTTY. `file` is open for the length of
        // the call.
        unsafe { ioctl(file, Request { opcode, argument }) }?;
        let got = self.batch.head.got as usize;
        self.batch.inodes.get(..got).ok_or(Errno::PROTO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_we_agree_on_the_sizes() {
        // The size in the number of the kernel's header, and what xfs_check_ondisk_structs() says.
        assert_eq!((size_of::<Head>(), size_of::<Inode>()), (64, 192));
        assert_eq!(std::mem::offset_of!(Inode, number), 0);
        assert_eq!(std::mem::offset_of!(Inode, mode), 132);
        assert_eq!(std::mem::offset_of!(Inode, group), 72);
        assert_eq!(std::mem::offset_of!(Batch, inodes), 64);
    }

    #[test]
    fn another_file_system_says_that_it_is_none() {
        let proc = std::fs::File::open("/proc").expect("the directory opens");
        assert_eq!(Inodes::new(0).next(&proc).err(), Some(Errno::NOTTY));
    }
}

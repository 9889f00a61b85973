//! The system calls that `rustix` lacks, and the only `unsafe` of this crate.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `struct mount_attr` of `mount_setattr(2)`, version 0 (32 bytes, Linux 5.12).
#[repr(C)]
#[derive(Debug, Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Makes the mount that `mount` refers to private: nothing mounted below it is seen elsewhere any
/// more, and the other way round. Only this one mount, not those below it. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s: EINVAL when the descriptor isn't the root of a mount, EPERM
/// without `CAP_SYS_ADMIN` in the mount namespace, ENOSYS before Linux 5.12.
pub fn set_propagation_private(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            // MS_PRIVATE is a C unsigned long (32 bits on some targets), the field is 64 bits.
            propagation: u64::from(rustix::mount::MountPropagationFlags::PRIVATE.bits()),
            ..MountAttr::default()
        },
    )
}

/// Makes a mount a read-only view, whatever its superblock is. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s.
pub fn set_read_only(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            attr_set: u64::from(rustix::mount::MountAttrFlags::MOUNT_ATTR_RDONLY.bits()),
            ..MountAttr::default()
        },
    )
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr) -> Result<(), Errno> {
    // SAFETY: `mount` is an open descriptor for the length of the call (borrowed); the path is a
    // static NUL-terminated empty string, which AT_EMPTY_PATH makes mean the descriptor itself;
    // `attr` points to a live, fully initialised `struct mount_attr` whose size is passed with it,
    // and the kernel only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Gives the calling thread a mount namespace of its own, a copy of the one it is in, with the same
/// propagation; and with it a root and a working directory that other threads don't share.
///
/// Errors are unshare(2)'s: EPERM without `CAP_SYS_ADMIN`, ENOSPC past
/// `/proc/sys/user/max_mnt_namespaces`.
pub fn unshare_mount_namespace() -> Result<(), Errno> {
    // SAFETY: `CLONE_NEWNS` (and `CLONE_FS`, which it implies) leaves the table of descriptors
    // shared: every `OwnedFd` and `BorrowedFd` of every thread stays what it was. It is
    // `CLONE_FILES`, which isn't given, for which the function is unsafe.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_and_we_agree_on_the_size_of_mount_attr() {
        // MOUNT_ATTR_SIZE_VER0 of include/uapi/linux/mount.h.
        assert_eq!(size_of::<MountAttr>(), 32);
    }

    #[test]
    fn what_is_not_the_root_of_a_mount_has_no_propagation() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fd = std::fs::File::open(directory.path()).expect("the directory opens");
        assert_eq!(set_propagation_private(&fd), Err(Errno::INVAL));
    }
}

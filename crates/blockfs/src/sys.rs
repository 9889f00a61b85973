//! The system calls that neither `rustix` nor `nix` has a safe function for, and the only `unsafe` of this crate.
#![allow(unsafe_code)]

pub(crate) mod bulkstat;
mod exec;
pub(crate) mod growth;
pub(crate) mod loops;
pub(crate) mod probe_process;
pub(crate) mod statmount;

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sched::CloneFlags;
use rustix::event::pause;
use rustix::io::Errno;
use rustix::ioctl::{Direction, Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use rustix::mount::MountAttrFlags;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

pub use exec::exec;

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

/// Puts the mount that `mount` refers to into a new peer group, of which it is the only member. Only
/// this one mount, not those below it. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s.
pub fn set_propagation_shared(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            propagation: u64::from(rustix::mount::MountPropagationFlags::SHARED.bits()),
            ..MountAttr::default()
        },
    )
}

/// Makes a mount and all mounts below it slaves of the peer groups that they are in; those that are in
/// none stay private. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s.
pub fn set_propagation_slave_recursively(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr_with(
        mount.as_fd(),
        libc::AT_EMPTY_PATH | libc::AT_RECURSIVE,
        &MountAttr {
            propagation: u64::from(rustix::mount::MountPropagationFlags::DOWNSTREAM.bits()),
            ..MountAttr::default()
        },
    )
}

/// Gives a mount attributes beside those that it has, whatever its superblock is; of the three
/// ways to keep access times the new one counts. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s.
pub fn add_attributes(mount: impl AsFd, attributes: MountAttrFlags) -> Result<(), Errno> {
    let times = MountAttrFlags::MOUNT_ATTR__ATIME;
    let clear = if attributes.intersects(times) {
        times
    } else {
        MountAttrFlags::empty()
    };
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            attr_set: u64::from(attributes.bits()),
            attr_clr: u64::from(clear.bits()),
            ..MountAttr::default()
        },
    )
}

/// Shows a mount's files with other owners: those that the user namespace maps theirs to. The mount
/// must be detached and mapped by nobody yet. `mount` may be `O_PATH`.
///
/// Errors are `mount_setattr(2)`'s: EINVAL where the file system can't be mapped, or where
/// the mount has been attached; EPERM for the initial user namespace.
pub fn set_id_mapping(mount: impl AsFd, user_namespace: impl AsFd) -> Result<(), Errno> {
    let namespace = user_namespace.as_fd().as_raw_fd();
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            // MOUNT_ATTR_IDMAP of include/uapi/linux/mount.h.
            attr_set: libc::MOUNT_ATTR_IDMAP,
            // An open descriptor is never negative.
            userns_fd: u64::try_from(namespace).unwrap_or(u64::MAX),
            ..MountAttr::default()
        },
    )
}

/// Starts a process in a new user namespace, which does nothing until it is killed, can do nothing,
/// and dies with this one. Its namespace has no mappings yet.
///
/// Errors are clone3(2)'s: EPERM or ENOSPC past `/proc/sys/user/max_user_namespaces`.
pub fn start_in_user_namespace() -> Result<Pid, Errno> {
    // `struct clone_args` of clone3(2), version 0; the order of clone(2)'s arguments depends on the
    // processor.
    let mut arguments = [0_u64; 8];
    arguments[0] = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    arguments[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    let parent = getpid();
    // SAFETY: without CLONE_VM the child has memory of its own, as after fork(2), and without a
    // stack it goes on with a copy of ours. `arguments` lives for the call, its size is passed with
    // it, and the kernel only reads it. The raw call runs no atfork handler; the child makes nothing
    // but system calls, which rustix makes without the C library, so no lock of another thread can
    // hold it up.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_ptr(),
            size_of_val(&arguments),
        )
    };
    if child == 0 {
        // A process that only waits needs none of a new namespace's capabilities.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        let _ = set_capabilities(None, sets);
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // The parent may have died before that: then there is nobody left to end the child.
        while getppid() == Some(parent) {
            // Returns after signals that a handler was run for. SIGKILL ends the process.
            pause();
        }
        exit_child(0);
    }
    if child < 0 {
        return Err(last_errno());
    }
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    pid.ok_or(Errno::SRCH)
}

/// Ends a process that a raw clone(2) has started, without what Rust or the C library do at an exit.
fn exit_child(status: c_int) -> ! {
    // SAFETY: `_exit` is exit_group(2) and no more. Destructors and handlers that don't run are a copy's, whose
    // originals are the parent's.
    unsafe { libc::_exit(status) }
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr) -> Result<(), Errno> {
    mount_setattr_with(mount, libc::AT_EMPTY_PATH, attr)
}

/// `flags` has `AT_EMPTY_PATH`.
fn mount_setattr_with(mount: BorrowedFd<'_>, flags: c_int, attr: &MountAttr) -> Result<(), Errno> {
    // SAFETY: `mount` is an open descriptor for the length of the call (borrowed); the path is a
    // static NUL-terminated empty string, which AT_EMPTY_PATH makes mean the descriptor itself;
    // `attr` points to a live, fully initialised `struct mount_attr` whose size is passed with it,
    // and the kernel only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
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
    unshare(CloneFlags::CLONE_NEWNS)
}

/// Unshares what the flags name. They never have `CLONE_FILES`: with it, descriptors that other threads open would be
/// invalid in this one. Allocates nothing, as children of a raw clone(2) call it. Errors are unshare(2)'s.
fn unshare(what: CloneFlags) -> Result<(), Errno> {
    nix::sched::unshare(what).map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

/// An ioctl whose argument is one value that the kernel reads or writes.
struct Request<'a, T> {
    opcode: Opcode,
    argument: &'a mut T,
}

/// Values that are valid whatever bytes they have: numbers, and `repr(C)` structures of numbers.
/// To be implemented in this module only.
trait Plain: Copy {}

// SAFETY: the pointer is to `argument`, borrowed exclusively as long as the request lives, and
// calls are taken to change it; the output is the call's own return value.
unsafe impl<T: Plain> Ioctl for Request<'_, T> {
    type Output = c_int;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.argument).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<c_int, Errno> {
        Ok(out)
    }
}

/// `_IOC(direction, group, number, size of the argument)` on `file`.
fn request<T: Plain>(
    file: impl AsFd,
    direction: Direction,
    group: u8,
    number: u8,
    argument: &mut T,
) -> Result<c_int, Errno> {
    let opcode = opcode::from_components(direction, group, number, size_of::<T>());
    // SAFETY: the size in the opcode is the argument's, so a file system that knows the opcode
    // copies no byte beyond it, and any bytes make a `T` (`Plain`). One that doesn't know it says
    // ENOTTY. `file` is open for the length of the call.
    unsafe { ioctl(file, Request { opcode, argument }) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The same number on every architecture that Rust's `std` knows on Linux.
const FCHMODAT2: libc::c_long = 452;

/// Sets the mode of what `entry` refers to, which may be `O_PATH` and isn't a symbolic link.
///
/// Errors are `fchmodat2(2)`'s: ENOSYS before Linux 6.6.
pub(crate) fn set_mode(entry: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmodat2(entry.as_raw_fd(), mode)
}

/// Whether [`set_mode`] works here. Asked of no file, so that an answer which isn't the call's own,
/// such as a seccomp filter's, isn't taken for one.
pub(crate) fn has_set_mode() -> bool {
    fchmodat2(-1, 0) == Err(Errno::BADF)
}

fn fchmodat2(fd: i32, mode: u32) -> Result<(), Errno> {
    // SAFETY: the path is a static NUL-terminated empty string, which AT_EMPTY_PATH makes mean `fd`;
    // that is a number, which the kernel looks up.
    let result = unsafe { libc::syscall(FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Gives the calling thread a root, a working directory and a umask that other threads don't share:
/// setns(2) of a mount namespace is refused to a thread that shares them, and one that ends does so
/// for a moment after it was joined (`do_exit` tells of the end before it lets go of them).
pub fn unshare_fs() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_FS)
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

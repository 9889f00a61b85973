//! System calls for which neither `rustix` nor `nix` has a safe function. This is the only module with `unsafe` code.
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
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};
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

/// Makes a mount private: mounts below it no longer propagate to or from its peers. Mounts that are attached below it
/// aren't changed. `mount` may be open with `O_PATH`.
///
/// Fails with the error of `mount_setattr(2)`: EINVAL if the descriptor isn't the root of a mount, EPERM without
/// `CAP_SYS_ADMIN` in the mount namespace, ENOSYS before Linux 5.12.
pub fn set_propagation_private(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            // MS_PRIVATE is a C unsigned long, which has 32 bits on some targets. The field has 64 bits.
            propagation: u64::from(rustix::mount::MountPropagationFlags::PRIVATE.bits()),
            ..MountAttr::default()
        },
    )
}

/// Makes a mount shared, as the only member of a new peer group. Mounts that are attached below it aren't changed.
/// `mount` may be open with `O_PATH`.
///
/// Fails with the error of `mount_setattr(2)`.
pub fn set_propagation_shared(mount: impl AsFd) -> Result<(), Errno> {
    mount_setattr(
        mount.as_fd(),
        &MountAttr {
            propagation: u64::from(rustix::mount::MountPropagationFlags::SHARED.bits()),
            ..MountAttr::default()
        },
    )
}

/// Makes a mount and all mounts below it slaves of their peer groups. Private mounts stay private. `mount` may be open
/// with `O_PATH`.
///
/// Fails with the error of `mount_setattr(2)`.
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

/// Adds attributes to a mount. They apply to this mount and not to its superblock. An access time mode replaces the
/// earlier one. `mount` may be open with `O_PATH`.
///
/// Fails with the error of `mount_setattr(2)`.
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

/// Maps the owners of a mount's files by a user namespace. The mount must be detached and must not have a mapping yet.
/// `mount` may be open with `O_PATH`.
///
/// Fails with the error of `mount_setattr(2)`: EINVAL if the file system doesn't support mappings or the mount has been
/// attached, EPERM for the initial user namespace.
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

/// Starts a process in a new user namespace without mappings. The process has no capabilities, does nothing, and lives
/// until it is killed or this process ends. The caller has to reap it.
///
/// Fails with the error of clone3(2): EPERM, or ENOSPC beyond the limit in `/proc/sys/user/max_user_namespaces`.
pub fn start_in_user_namespace() -> Result<Pid, Errno> {
    // `struct clone_args` of clone3(2), version 0. (The order of the arguments of clone(2) depends on the
    // architecture.)
    let mut arguments = [0_u64; 8];
    arguments[0] = u64::from(libc::CLONE_NEWUSER.cast_unsigned());
    arguments[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    let parent = getpid();
    // SAFETY: without CLONE_VM the child has memory of its own, as after fork(2), and without a new stack it continues
    // on a copy of this one. `arguments` lives during the call, its size is passed with it, and the kernel only reads
    // it. The raw call runs no atfork handlers. The child only makes system calls, which rustix makes without the C
    // library, so no lock of another thread can block it.
    let child = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            arguments.as_ptr(),
            size_of_val(&arguments),
        )
    };
    if child == 0 {
        // In a new user namespace the process has all capabilities, and needs none.
        let none = CapabilitySet::empty();
        let sets = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        let _ = set_capabilities(None, sets);
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // If the parent ended before the call above, the child gets no signal and has to end by itself.
        while getppid() == Some(parent) {
            // Returns after a signal handler has run. SIGKILL ends the process.
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

/// Ends a process that a raw clone(2) has started. Runs neither destructors nor exit handlers.
fn exit_child(status: c_int) -> ! {
    // SAFETY: `_exit` only calls exit_group(2). The destructors and handlers that don't run belong to the parent, which
    // runs them itself.
    unsafe { libc::_exit(status) }
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr) -> Result<(), Errno> {
    mount_setattr_with(mount, libc::AT_EMPTY_PATH, attr)
}

/// Calls `mount_setattr(2)` with `flags`, which must include `AT_EMPTY_PATH`.
fn mount_setattr_with(mount: BorrowedFd<'_>, flags: c_int, attr: &MountAttr) -> Result<(), Errno> {
    // SAFETY: `mount` is borrowed and therefore open during the call. The path is an empty, NUL-terminated static
    // string, which with AT_EMPTY_PATH means the descriptor itself. `attr` points to a live, fully initialised
    // `struct mount_attr`, whose size is passed with it, and the kernel only reads it.
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

/// Moves the calling thread into a new mount namespace, which is a copy of the current one with the same propagation.
/// The thread no longer shares its root and working directory with other threads.
///
/// Fails with the error of unshare(2): EPERM without `CAP_SYS_ADMIN`, ENOSPC beyond the limit in
/// `/proc/sys/user/max_mnt_namespaces`.
pub fn unshare_mount_namespace() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNS)
}

/// Moves the calling thread into a new mount namespace, and unmounts everything there. Files that are open stay usable.
/// The root directory stays that of the root file system, without what is mounted in it. Doesn't allocate, because
/// children of a raw clone(2) call it.
///
/// Fails with the error of unshare(2), mount(2) or umount(2).
pub fn leave_all_mounts() -> Result<(), Errno> {
    unshare_mount_namespace()?;
    // The mounts are copies, and private, so unmounting them affects no other process.
    mount_change(
        c"/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    unmount(c"/", UnmountFlags::DETACH)
}

/// Closes all descriptors but standard input, output and error. A program calls this when it starts, before it opens
/// descriptors of its own.
///
/// Fails with the error of `close_range(2)`: ENOSYS before Linux 5.9.
pub fn close_inherited_descriptors() -> Result<(), Errno> {
    close_descriptors_from(3)
}

/// Neither rustix nor nix has `close_range(2)`.
fn close_descriptors_from(first: libc::c_uint) -> Result<(), Errno> {
    // SAFETY: the callers don't use the descriptors any more: they are copies in a child process, or were inherited by a
    // program that has opened none itself.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Ends the calling process, and continues as a new process in a session of its own, which is no child of the caller's
/// parent. Working directory and descriptors stay the same. The process must not have other threads, which would end.
///
/// Fails with the error of fork(2).
pub fn continue_in_background() -> Result<(), Errno> {
    nix::unistd::daemon(true, true).map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

/// Calls unshare(2) and returns its error. `flags` must not include `CLONE_FILES`: descriptors that other threads open
/// would then be invalid in this thread. Doesn't allocate, because children of a raw clone(2) call it.
fn unshare(flags: CloneFlags) -> Result<(), Errno> {
    nix::sched::unshare(flags).map_err(|errno| Errno::from_raw_os_error(errno as i32))
}

/// An ioctl whose argument is a value that the kernel reads or writes.
struct Request<'a, T> {
    opcode: Opcode,
    argument: &'a mut T,
}

/// A type for which any bytes are a valid value: numbers, and `repr(C)` structures of numbers. Implement it only in
/// `sys`.
trait AnyBitPattern: Copy {}

// SAFETY: the pointer points to `argument`, which is borrowed exclusively as long as the request lives. The ioctl is
// declared as one that changes the argument, and the output is its return value.
unsafe impl<T: AnyBitPattern> Ioctl for Request<'_, T> {
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

/// Makes the ioctl `_IOC(direction, group, number, size of the argument)` on `file`.
fn request<T: AnyBitPattern>(
    file: impl AsFd,
    direction: Direction,
    group: u8,
    number: u8,
    argument: &mut T,
) -> Result<c_int, Errno> {
    let opcode = opcode::from_components(direction, group, number, size_of::<T>());
    // SAFETY: the opcode contains the size of the argument, so a file system that knows the opcode copies no byte
    // beyond it, and any bytes are a valid `T` (`AnyBitPattern`). Others return ENOTTY. `file` is open during the call.
    unsafe { ioctl(file, Request { opcode, argument }) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// The number of fchmodat2(2), which is the same on every Linux architecture that Rust's `std` supports.
const FCHMODAT2: libc::c_long = 452;

/// Sets the mode of a file, which may be open with `O_PATH` and must not be a symbolic link.
///
/// Fails with the error of `fchmodat2(2)`: ENOSYS before Linux 6.6.
pub(crate) fn set_mode(entry: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    fchmodat2(entry.as_raw_fd(), mode)
}

/// Returns whether [`set_mode`] works on this kernel. Calls it with an invalid descriptor: any error other than EBADF
/// isn't from the call itself, but for example from a seccomp filter.
pub(crate) fn has_set_mode() -> bool {
    fchmodat2(-1, 0) == Err(Errno::BADF)
}

fn fchmodat2(fd: i32, mode: u32) -> Result<(), Errno> {
    // SAFETY: the path is an empty, NUL-terminated static string, which with AT_EMPTY_PATH means `fd`. That is a
    // number, which the kernel looks up.
    let result = unsafe { libc::syscall(FCHMODAT2, fd, c"".as_ptr(), mode, libc::AT_EMPTY_PATH) };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Stops sharing the root, working directory and umask of the calling thread with other threads (`CLONE_FS`).
///
/// setns(2) refuses to move a thread that shares them into a mount namespace. A thread that has been joined may still
/// share them for a moment, because `do_exit` reports its end before it releases them.
pub fn unshare_fs() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_FS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_attr_has_the_kernels_size() {
        // MOUNT_ATTR_SIZE_VER0 of include/uapi/linux/mount.h.
        assert_eq!(size_of::<MountAttr>(), 32);
    }

    #[test]
    fn a_directory_that_is_not_a_mount_root_cannot_be_made_private() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let fd = std::fs::File::open(directory.path()).expect("the directory opens");
        assert_eq!(set_propagation_private(&fd), Err(Errno::INVAL));
    }
}

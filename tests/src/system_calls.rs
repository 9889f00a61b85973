//! The system calls that change something, by what they change. The tracer of [`steps`](crate::steps) uses them, and
//! suites that read the output of strace(1).

use nix::libc::{self, c_long};

/// The kind of thing that a system call changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    /// Opens a file. With some flags the call creates, truncates or claims the file.
    Open,
    /// Creates, changes or removes something that other processes see: a file, a mount, a process or a lock.
    Object,
    /// Writes to a file or a pipe.
    Write,
    /// Makes the kernel write cached data.
    Sync,
    /// Sends a request to a device or a file system. Only some requests change it.
    Request,
    /// Replaces the caller's program.
    Exec,
    /// Changes the caller's root directory or namespaces.
    RootOrNamespace,
    /// Changes an attribute of the caller that is kept across an exec.
    Inherited,
}

#[derive(Debug)]
struct Call {
    number: c_long,
    name: &'static str,
    kind: CallKind,
}

macro_rules! calls {
    ($($kind:ident: $($number:ident)+;)+) => {
        &[$($(Call {
            number: libc::$number,
            name: stringify!($number).split_at("SYS_".len()).1,
            kind: CallKind::$kind,
        }),+),+]
    };
}

const CALLS: &[Call] = calls! {
    Open: SYS_openat SYS_openat2;
    Object: SYS_clone SYS_clone3 SYS_execveat SYS_fallocate SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat
        SYS_flock SYS_fremovexattr SYS_fsconfig SYS_fsetxattr SYS_fsmount SYS_fsopen SYS_ftruncate SYS_kill SYS_linkat
        SYS_lremovexattr SYS_lsetxattr SYS_mkdirat SYS_mknodat SYS_mount SYS_mount_setattr SYS_move_mount SYS_open_tree
        SYS_pidfd_send_signal SYS_removexattr SYS_renameat SYS_renameat2 SYS_setxattr SYS_symlinkat SYS_tgkill
        SYS_truncate SYS_umount2 SYS_unlinkat SYS_unshare SYS_utimensat;
    Write: SYS_copy_file_range SYS_pwrite64 SYS_pwritev SYS_pwritev2 SYS_sendfile SYS_write SYS_writev;
    Sync: SYS_fdatasync SYS_fsync SYS_sync SYS_syncfs;
    Request: SYS_ioctl;
    Exec: SYS_execve;
    RootOrNamespace: SYS_chroot SYS_setns;
    Inherited: SYS_chdir SYS_fchdir SYS_prctl SYS_sched_setaffinity SYS_setpgid SYS_setpriority SYS_setrlimit SYS_setsid
        SYS_umask;
};

/// System calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[Call] = calls! {
    Open: SYS_open;
    Object: SYS_chmod SYS_chown SYS_creat SYS_fork SYS_lchown SYS_link SYS_mkdir SYS_mknod SYS_rename SYS_rmdir
        SYS_symlink SYS_unlink SYS_vfork;
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[Call] = &[];

/// Returns the names of the calls of these kinds, as strace(1) writes them.
pub fn names(kinds: &[CallKind]) -> impl Iterator<Item = &'static str> {
    let calls = CALLS.iter().chain(OLD_CALLS);
    calls
        .filter(|call| kinds.contains(&call.kind))
        .map(|call| call.name)
}

/// The flags with which an open creates, truncates or claims a file.
const CHANGING_OPEN_FLAGS: u64 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE)
    as u64
    & !(libc::O_DIRECTORY as u64);

/// The bit of `_IOW` and `_IOWR` requests, which pass data to the kernel.
const IOC_WRITE: u64 = 1 << 30;

/// Requests that are older than `_IOW`: `BLKROSET`, and those of `LOOP_…` that change something.
const OLD_REQUESTS: [u64; 11] = [
    0x125d, 0x4c00, 0x4c01, 0x4c02, 0x4c04, 0x4c06, 0x4c07, 0x4c08, 0x4c09, 0x4c0a, 0x4c82,
];

/// Returns the name of a call if it changes something other than its caller with these arguments. `word` reads the
/// caller's memory; if that fails, the call will fail as well.
pub(crate) fn changing_call(
    number: u64,
    arguments: [u64; 3],
    word: impl FnOnce(u64) -> Option<u64>,
) -> Option<&'static str> {
    let mut calls = CALLS.iter().chain(OLD_CALLS);
    let call = calls.find(|call| u64::try_from(call.number) == Ok(number))?;
    let [_, second, third] = arguments;
    let counts = match (call.kind, call.name) {
        (CallKind::Inherited, _) => false,
        // A clone without flags and without an exit signal is only a probe, whose child is not waited for.
        (_, "clone") => arguments[0] != 0,
        (_, "open") => second & CHANGING_OPEN_FLAGS != 0,
        // The flags are the first word of `struct open_how`.
        (_, "openat2") => word(third).unwrap_or(0) & CHANGING_OPEN_FLAGS != 0,
        (CallKind::Open, _) => third & CHANGING_OPEN_FLAGS != 0,
        (CallKind::Request, _) => second & IOC_WRITE != 0 || OLD_REQUESTS.contains(&second),
        _ => true,
    };
    counts.then_some(call.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changing_call(call: c_long, arguments: [u64; 3]) -> Option<&'static str> {
        let number = u64::try_from(call).unwrap();
        super::changing_call(number, arguments, |_| {
            unreachable!("{call} needs no memory of its caller")
        })
    }

    /// Flags of an `openat` call, and whether a call with these flags counts as a step.
    const FLAGS: [(i32, bool); 6] = [
        (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, false),
        (libc::O_PATH, false),
        (libc::O_WRONLY, false),
        (libc::O_WRONLY | libc::O_CREAT, true),
        (libc::O_RDONLY | libc::O_EXCL, true),
        (libc::O_WRONLY | libc::O_TMPFILE, true),
    ];

    #[test]
    fn calls_that_only_read_are_no_steps() {
        for (flags, is_step) in FLAGS {
            let step = changing_call(libc::SYS_openat, [0, 0, u64::try_from(flags).unwrap()]);
            assert_eq!(step, is_step.then_some("openat"), "{flags:o}");
        }
        let ioctl = |request| changing_call(libc::SYS_ioctl, [0, request, 0]);
        assert_eq!(ioctl(0x8008_1272), None, "BLKGETSIZE64");
        assert_eq!(ioctl(0x4018_586e), Some("ioctl"), "XFS_IOC_FSGROWFSDATA");
        assert_eq!(ioctl(0x4c05), None, "LOOP_GET_STATUS64");
        assert_eq!(ioctl(0x4c0a), Some("ioctl"), "LOOP_CONFIGURE");
        assert_eq!(changing_call(libc::SYS_read, [0; 3]), None);
        assert_eq!(changing_call(libc::SYS_clone, [0; 3]), None, "a probe");
        assert_eq!(
            changing_call(libc::SYS_clone, [17, 0, 0]),
            Some("clone"),
            "fork(2)"
        );
    }

    #[test]
    fn the_flags_of_openat2_are_read_from_memory() {
        const HOW: u64 = 0x7fff_0000;
        let number = u64::try_from(libc::SYS_openat2).unwrap();
        let open = |word: Option<u64>| {
            super::changing_call(number, [0, 0, HOW], |address| {
                assert_eq!(address, HOW);
                word
            })
        };
        for (flags, is_step) in FLAGS {
            let step = open(Some(u64::try_from(flags).unwrap()));
            assert_eq!(step, is_step.then_some("openat2"), "{flags:o}");
        }
        assert_eq!(open(None), None);
    }
}

//! The system calls that change something, by what they change: for the tracer of [`steps`](crate::steps), and for
//! suites that read what strace(1) writes.

use nix::libc::{self, c_long};

/// What a system call changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens a file, and with some flags makes, empties or claims it.
    Open,
    /// Makes, changes or removes something that others see: a file, a mount, a process, a lock.
    Object,
    /// Writes into a file or a pipe.
    Write,
    /// Has the kernel write what it has in memory.
    Sync,
    /// Sends a request to a device or a file system, and with some requests changes it.
    Request,
    /// Makes the caller another program.
    Exec,
    /// Gives the caller another root, or takes it to another namespace.
    Place,
    /// Changes what else of the caller a program inherits that it becomes.
    Inherited,
}

#[derive(Debug)]
struct Call {
    number: c_long,
    name: &'static str,
    kind: Kind,
}

macro_rules! calls {
    ($($kind:ident: $($number:ident)+;)+) => {
        &[$($(Call {
            number: libc::$number,
            name: stringify!($number).split_at("SYS_".len()).1,
            kind: Kind::$kind,
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
    Place: SYS_chroot SYS_setns;
    Inherited: SYS_chdir SYS_fchdir SYS_prctl SYS_sched_setaffinity SYS_setpgid SYS_setpriority SYS_setrlimit SYS_setsid
        SYS_umask;
};

/// Calls that newer architectures never had.
#[cfg(target_arch = "x86_64")]
const OLD: &[Call] = calls! {
    Open: SYS_open;
    Object: SYS_chmod SYS_chown SYS_creat SYS_fork SYS_lchown SYS_link SYS_mkdir SYS_mknod SYS_rename SYS_rmdir
        SYS_symlink SYS_unlink SYS_vfork;
};
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Call] = &[];

/// Returns the names of the calls of these kinds, as strace(1) writes them.
pub fn names(kinds: &[Kind]) -> impl Iterator<Item = &'static str> {
    let calls = CALLS.iter().chain(OLD);
    calls
        .filter(|call| kinds.contains(&call.kind))
        .map(|call| call.name)
}

/// The flags with which an open makes, empties or claims a file.
const OPENS: u64 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE) as u64
    & !(libc::O_DIRECTORY as u64);

/// `_IOW` and `_IOWR`: a request that the kernel is given something with.
const GIVES: u64 = 1 << 30;

/// Requests from before there was `_IOW`: `BLKROSET`, and of `LOOP_…` those that set something.
const OLD_REQUESTS: [u64; 11] = [
    0x125d, 0x4c00, 0x4c01, 0x4c02, 0x4c04, 0x4c06, 0x4c07, 0x4c08, 0x4c09, 0x4c0a, 0x4c82,
];

/// Returns the name of a call if it changes something but its caller with these arguments. `word` reads what stands
/// at an address of the caller's; where nothing can be read the call will fail.
pub(crate) fn changing(
    number: u64,
    arguments: [u64; 3],
    word: impl FnOnce(u64) -> Option<u64>,
) -> Option<&'static str> {
    let mut calls = CALLS.iter().chain(OLD);
    let call = calls.find(|call| u64::try_from(call.number) == Ok(number))?;
    let [_, second, third] = arguments;
    let counts = match (call.kind, call.name) {
        (Kind::Inherited, _) => false,
        // Without a flag, or a signal at its end, it is one that only asks, and nobody waits for.
        (_, "clone") => arguments[0] != 0,
        (_, "open") => second & OPENS != 0,
        // The first word of `struct open_how`.
        (_, "openat2") => word(third).unwrap_or(0) & OPENS != 0,
        (Kind::Open, _) => third & OPENS != 0,
        (Kind::Request, _) => second & GIVES != 0 || OLD_REQUESTS.contains(&second),
        _ => true,
    };
    counts.then_some(call.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changing(call: c_long, arguments: [u64; 3]) -> Option<&'static str> {
        let number = u64::try_from(call).unwrap();
        super::changing(number, arguments, |_| {
            unreachable!("{call} is told nothing so")
        })
    }

    /// The flags of each kind of open, and whether it is a step.
    const FLAGS: [(i32, bool); 6] = [
        (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC, false),
        (libc::O_PATH, false),
        (libc::O_WRONLY, false),
        (libc::O_WRONLY | libc::O_CREAT, true),
        (libc::O_RDONLY | libc::O_EXCL, true),
        (libc::O_WRONLY | libc::O_TMPFILE, true),
    ];

    #[test]
    fn what_only_looks_is_no_step() {
        for (flags, is_step) in FLAGS {
            let step = changing(libc::SYS_openat, [0, 0, u64::try_from(flags).unwrap()]);
            assert_eq!(step, is_step.then_some("openat"), "{flags:o}");
        }
        let ioctl = |request| changing(libc::SYS_ioctl, [0, request, 0]);
        assert_eq!(ioctl(0x8008_1272), None, "BLKGETSIZE64");
        assert_eq!(ioctl(0x4018_586e), Some("ioctl"), "XFS_IOC_FSGROWFSDATA");
        assert_eq!(ioctl(0x4c05), None, "LOOP_GET_STATUS64");
        assert_eq!(ioctl(0x4c0a), Some("ioctl"), "LOOP_CONFIGURE");
        assert_eq!(changing(libc::SYS_read, [0; 3]), None);
        assert_eq!(changing(libc::SYS_clone, [0; 3]), None, "who only asks");
        assert_eq!(
            changing(libc::SYS_clone, [17, 0, 0]),
            Some("clone"),
            "fork(2)"
        );
    }

    #[test]
    fn the_flags_of_openat2_are_its_callers_to_be_read() {
        const HOW: u64 = 0x7fff_0000;
        let number = u64::try_from(libc::SYS_openat2).unwrap();
        let open = |word: Option<u64>| {
            super::changing(number, [0, 0, HOW], |address| {
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

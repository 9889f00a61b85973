//! The system calls that change something but their caller.

use nix::libc::{self, c_long};

/// A call and when it is a step.
struct Call {
    number: c_long,
    name: &'static str,
    counts: When,
}

/// When a call changes something.
enum When {
    Always,
    /// With one of these flags in this argument.
    Flag(usize, u64),
    /// With one of these flags in the word that this argument points to.
    FlagBehind(usize, u64),
    /// With a request that changes something.
    Request,
}

/// Also those that claim something: an `openat` of a device with `O_EXCL`.
const OPENS: u64 = (libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_TMPFILE) as u64
    & !(libc::O_DIRECTORY as u64);

/// `_IOW` and `_IOWR`: a request that the kernel is given something with.
const GIVES: u64 = 1 << 30;

/// Requests from before there was `_IOW`: `BLKROSET`, and of `LOOP_…` those that set something.
const OLD_REQUESTS: [u64; 11] = [
    0x125d, 0x4c00, 0x4c01, 0x4c02, 0x4c04, 0x4c06, 0x4c07, 0x4c08, 0x4c09, 0x4c0a, 0x4c82,
];

macro_rules! calls {
    ($($name:ident: $number:ident $when:expr),+ $(,)?) => {
        &[$(Call { number: libc::$number, name: stringify!($name), counts: $when }),+]
    };
}

use When::{Always, Flag, FlagBehind, Request};

const CALLS: &[Call] = calls! {
    chroot: SYS_chroot Always,
    // Without a flag, or a signal at its end, it is one that only asks, and nobody waits for.
    clone: SYS_clone Flag(0, u64::MAX),
    clone3: SYS_clone3 Always,
    execve: SYS_execve Always,
    fallocate: SYS_fallocate Always,
    fchmod: SYS_fchmod Always,
    fchmodat: SYS_fchmodat Always,
    fchmodat2: SYS_fchmodat2 Always,
    fchown: SYS_fchown Always,
    fchownat: SYS_fchownat Always,
    fdatasync: SYS_fdatasync Always,
    flock: SYS_flock Always,
    fsconfig: SYS_fsconfig Always,
    fsetxattr: SYS_fsetxattr Always,
    fsmount: SYS_fsmount Always,
    fsopen: SYS_fsopen Always,
    fsync: SYS_fsync Always,
    ftruncate: SYS_ftruncate Always,
    ioctl: SYS_ioctl Request,
    kill: SYS_kill Always,
    linkat: SYS_linkat Always,
    mkdirat: SYS_mkdirat Always,
    mknodat: SYS_mknodat Always,
    mount: SYS_mount Always,
    mount_setattr: SYS_mount_setattr Always,
    move_mount: SYS_move_mount Always,
    open_tree: SYS_open_tree Always,
    openat: SYS_openat Flag(2, OPENS),
    // The first of `struct open_how`.
    openat2: SYS_openat2 FlagBehind(2, OPENS),
    pidfd_send_signal: SYS_pidfd_send_signal Always,
    pwrite64: SYS_pwrite64 Always,
    renameat: SYS_renameat Always,
    renameat2: SYS_renameat2 Always,
    setns: SYS_setns Always,
    symlinkat: SYS_symlinkat Always,
    sync: SYS_sync Always,
    syncfs: SYS_syncfs Always,
    umount2: SYS_umount2 Always,
    unlinkat: SYS_unlinkat Always,
    unshare: SYS_unshare Always,
    utimensat: SYS_utimensat Always,
    write: SYS_write Always,
    writev: SYS_writev Always,
};

/// Those that newer machines never had.
#[cfg(target_arch = "x86_64")]
const OLD: &[Call] = calls! {
    chmod: SYS_chmod Always,
    chown: SYS_chown Always,
    creat: SYS_creat Always,
    fork: SYS_fork Always,
    lchown: SYS_lchown Always,
    link: SYS_link Always,
    mkdir: SYS_mkdir Always,
    mknod: SYS_mknod Always,
    open: SYS_open Flag(1, OPENS),
    rename: SYS_rename Always,
    rmdir: SYS_rmdir Always,
    symlink: SYS_symlink Always,
    unlink: SYS_unlink Always,
    vfork: SYS_vfork Always,
};
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[Call] = &[];

/// The name of a call that changes something, if it does with these arguments. `word` reads what stands
/// at an address of the caller's; where nothing can be read the call will fail.
pub(super) fn changing(
    number: u64,
    arguments: [u64; 3],
    word: impl FnOnce(u64) -> Option<u64>,
) -> Option<&'static str> {
    let mut calls = CALLS.iter().chain(OLD);
    let call = calls.find(|call| u64::try_from(call.number) == Ok(number))?;
    let counts = match call.counts {
        Always => true,
        Flag(argument, flags) => arguments[argument] & flags != 0,
        Request => arguments[1] & GIVES != 0 || OLD_REQUESTS.contains(&arguments[1]),
        FlagBehind(argument, flags) => word(arguments[argument]).unwrap_or(0) & flags != 0,
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

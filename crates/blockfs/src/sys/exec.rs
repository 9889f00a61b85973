//! Becoming another program, with SIGPIPE as the caller left it.
//!
//! Rust's start-up ignores SIGPIPE before `main` runs, and keeps no note of what it was. Ignored signals stay ignored
//! through execve(2), so both kinds of callers would be wronged: one that doesn't ignore it (a shell) would find it
//! ignored in the delegate, and one that does (conmon, systemd for its services) would find that undone if it were
//! always reset. What the caller had can only be read before Rust's start-up: docs/adr/0006-no-start-up-tricks.md.

use std::ffi::{CString, OsString};
use std::io;
use std::iter;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::execv;

/// Whether the caller of this program ignores SIGPIPE.
static CALLER_IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// An entry of the array of functions that the C library calls before `main` (System V gABI, "Initialization and
/// Termination Functions").
// SAFETY: the section is an array of pointers to functions of the C ABI, and this is one. musl passes none of the
// arguments that glibc does, and the function takes none. It needs nothing of Rust's start-up.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed; the kernel's answer is written to `action`, which lives for
    // the call. Zeros are an action too (SIG_DFL), should there be no answer.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    CALLER_IGNORES_SIGPIPE.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Becomes the program at `path`, called by it and by `arguments`; environment and descriptors stay as they
/// are. Returns only the reason why it couldn't.
pub fn exec(path: &Path, arguments: &[OsString]) -> io::Error {
    let arguments = arguments.iter().map(OsString::as_os_str);
    let argv = iter::once(path.as_os_str()).chain(arguments);
    let argv: Result<Vec<CString>, _> = argv.map(|it| CString::new(it.as_bytes())).collect();
    let argv = match argv {
        Ok(argv) => argv,
        Err(error) => return error.into(),
    };
    let is_reset = !CALLER_IGNORES_SIGPIPE.load(Ordering::Relaxed);
    if is_reset {
        set_sigpipe(libc::SIG_DFL);
    }
    let Err(errno) = execv(&argv[0], &argv);
    if is_reset {
        // This program still has to report the error, perhaps to a pipe that nobody reads.
        set_sigpipe(libc::SIG_IGN);
    }
    errno.into()
}

/// Sets the disposition of SIGPIPE to `SIG_DFL` or `SIG_IGN`. (nix's function
/// for it is unsafe, because it also installs handlers.)
fn set_sigpipe(disposition: libc::sighandler_t) {
    // SAFETY: neither of the two is a handler: no code of this program runs by the signal.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}

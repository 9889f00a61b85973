//! Replaces this program by another program, with the disposition of SIGPIPE that the caller set.
//!
//! Rust's runtime ignores SIGPIPE before `main` runs, and doesn't remember the earlier disposition. Ignored signals
//! stay ignored through execve(2), so the delegate would ignore SIGPIPE even if the caller doesn't (a shell). If the
//! disposition were always reset, the delegate wouldn't ignore SIGPIPE even if the caller does (conmon, systemd for its
//! services). The caller's disposition can only be read before Rust's runtime starts; see
//! docs/adr/0006-no-start-up-tricks.md.

use std::ffi::{CString, OsString};
use std::io;
use std::iter;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::execv;

/// Whether the caller of this program had SIGPIPE ignored.
static CALLER_IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// An entry in the array of functions that the C library calls before `main` (System V gABI, "Initialization and
/// Termination Functions").
// SAFETY: the section is an array of pointers to functions with the C ABI, and this is one. glibc passes arguments and
// musl doesn't; the function takes none. It doesn't depend on the initialization of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action nothing is changed. The current one is written to `action`, which lives during the
    // call. If the call fails, zeroes are a valid action, too (SIG_DFL).
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    CALLER_IGNORES_SIGPIPE.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Replaces this program by the one at `path`, which is also its `argv[0]`, followed by `arguments`. Environment and
/// descriptors are kept. Returns only if that fails.
pub fn exec(path: &Path, arguments: &[OsString]) -> io::Error {
    let arguments = arguments.iter().map(OsString::as_os_str);
    let argv = iter::once(path.as_os_str()).chain(arguments);
    let argv: Result<Vec<CString>, _> = argv
        .map(|argument| CString::new(argument.as_bytes()))
        .collect();
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
        // This program still has to report the error, perhaps to a pipe without a reader.
        set_sigpipe(libc::SIG_IGN);
    }
    errno.into()
}

/// Sets the disposition of SIGPIPE to `SIG_DFL` or `SIG_IGN`. (nix's function for this is unsafe, because it can also
/// install handlers.)
fn set_sigpipe(disposition: libc::sighandler_t) {
    // SAFETY: neither disposition is a handler, so the signal runs no code of this program.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}

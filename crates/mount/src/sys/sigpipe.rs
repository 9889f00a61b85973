//! SIGPIPE as the caller left it.
//!
//! Rust ignores the signal before `main`, and `Command::exec` sets it to its default: a caller that
//! ignores it (conmon does, systemd for its services) would find that undone.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it was ignored when this program started.
static IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls what stands in this section before `main`, once, on the only thread.
// `look` is an `extern "C"` function, and the arguments that glibc passes are no harm to one
// without parameters; it needs nothing that Rust's own start-up makes, and can't unwind.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: with no new action (a null pointer) the call only writes the present one to
    // `action`, which is valid for that.
    let found = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) };
    if found == 0 {
        // SAFETY: the call succeeded, and so has written the whole structure.
        let action = unsafe { action.assume_init() };
        IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    }
}

/// Becomes the command, with SIGPIPE as this program was given it. Returns only the reason why it
/// couldn't.
pub fn exec(command: &mut Command) -> io::Error {
    if IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: SIG_IGN is no handler: no code of this program would run.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call; `exec` doesn't fork, so that it runs in this
        // process as any other code.
        unsafe { command.pre_exec(ignore) };
    }
    command.exec()
}

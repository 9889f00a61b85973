//! Becoming another program, with SIGPIPE as the caller left it: one who ignores it (conmon does, systemd
//! for its services) would find that undone, and one who doesn't would find it ignored.

use std::ffi::{CString, OsString, c_char};
use std::io;
use std::iter;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether it is this program that ignores the signal, and not its caller.
static IGNORED_HERE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// environ(7)
    static environ: *const *const c_char;
}

/// Makes a write that nobody reads an error, and not the end of this program in the middle of something.
pub fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is no handler: no code of this program would run.
    let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if before == libc::SIG_DFL {
        IGNORED_HERE.store(true, Ordering::Relaxed);
    }
}

/// Becomes the program at `path`, called by it and by `arguments`; environment and descriptors stay as they
/// are. Returns only the reason why it couldn't.
pub fn exec(path: &Path, arguments: &[OsString]) -> io::Error {
    let mut argv = Vec::with_capacity(1 + arguments.len());
    let mut pointers = Vec::with_capacity(2 + arguments.len());
    let arguments = arguments.iter().map(OsString::as_os_str);
    for argument in iter::once(path.as_os_str()).chain(arguments) {
        match CString::new(argument.as_bytes()) {
            Ok(argument) => {
                // It stays where it is: `argv` moves the string, not its bytes.
                pointers.push(argument.as_ptr());
                argv.push(argument);
            }
            Err(error) => return error.into(),
        }
    }
    pointers.push(ptr::null());
    let was_ignored_here = IGNORED_HERE.load(Ordering::Relaxed);
    if was_ignored_here {
        // SAFETY: SIG_DFL is no handler either.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    // SAFETY: `argv` and the list of pointers into it live for the call, the list ends with a null pointer,
    // and so does `environ`, which nothing in this program changes.
    unsafe { libc::execve(pointers[0], pointers.as_ptr(), environ) };
    let error = io::Error::last_os_error();
    if was_ignored_here {
        ignore_sigpipe();
    }
    error
}

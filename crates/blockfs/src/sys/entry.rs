//! A program's way in, without what Rust's own start-up does first: a stack for signals, handlers, SIGPIPE,
//! a dozen of the kernel's calls in all, of which a command that is only handed on needs one.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;

/// The symbols of a program that has `#![no_main]`, in its root: the `main` that C's start-up calls, which [`run`]s
/// the program, and, where a panic aborts, a stack without frames.
///
/// Rust's own report of a panic can print a backtrace, and what puts names to its frames (DWARF, zlib) would be a
/// tenth of `crust-mount-hook`: for nothing, since a release has neither names nor the tables that frames are found
/// by. Here the compiler sees that there is no frame, and leaves all of it out.
#[macro_export]
macro_rules! program {
    ($main:path) => {
        // SAFETY: no other `main` is in this program: without `no_main` there would be Rust's.
        #[unsafe(no_mangle)]
        extern "C" fn main(
            count: ::std::ffi::c_int,
            arguments: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: they are `main`'s own.
            unsafe { $crate::sys::entry::run(count, arguments, $main) }
        }

        #[cfg(all(panic = "abort", target_env = "musl"))]
        mod unwinding {
            use ::std::ffi::{c_int, c_void};

            /// Calls nobody, and says `_URC_END_OF_STACK`.
            // SAFETY: the arguments and the result are those of libunwind's (`unwind.h`), which the linker would
            // refuse beside this one.
            #[unsafe(no_mangle)]
            extern "C" fn _Unwind_Backtrace(_each: *const c_void, _its: *mut c_void) -> c_int {
                5
            }

            // What else Rust refers to, and nobody calls, of the file that libunwind has it in: for one of these
            // the linker would take the file, and find two of the above.
            // SAFETY: as above.
            #[unsafe(no_mangle)]
            extern "C" fn _Unwind_GetIPInfo(_frame: *mut c_void, _before: *mut c_int) -> usize {
                0
            }

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            extern "C" fn _Unwind_GetDataRelBase(_frame: *mut c_void) -> usize {
                0
            }

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            extern "C" fn _Unwind_GetTextRelBase(_frame: *mut c_void) -> usize {
                0
            }
        }
    };
}

/// Runs a program that has `#![no_main]`, and returns what its `main` has to.
///
/// `std::env::args_os` knows nothing of the arguments there, not with every C library.
///
/// # Safety
///
/// The arguments are those that C's start-up calls `main` with.
pub unsafe fn run(
    count: c_int,
    arguments: *const *const c_char,
    program: fn(&[OsString]) -> u8,
) -> c_int {
    let count = usize::try_from(count).unwrap_or_default();
    let mut argv = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: `main` is given `count` pointers to strings that end with a NUL and stay where they
        // are as long as the program runs (C11 5.1.2.2.1).
        let argument = unsafe { CStr::from_ptr(*arguments.add(at)) };
        argv.push(OsStr::from_bytes(argument.to_bytes()).to_os_string());
    }
    open_standard_streams();
    let code = program(&argv);
    // Nobody does it later.
    let _ = std::io::stdout().flush();
    c_int::from(code)
}

/// Gives standard streams that the caller had closed `/dev/null`, as Rust's start-up would: what is opened
/// next would be taken for one.
fn open_standard_streams() {
    let mut streams = [0, 1, 2].map(|fd| libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    });
    // SAFETY: the kernel reads and writes the three elements that it is told of, which live for the call.
    let polled = unsafe { libc::poll(streams.as_mut_ptr(), 3, 0) };
    if polled == 0 {
        return;
    }
    for stream in streams {
        let is_closed = match polled {
            // SAFETY: it only looks whether the number is a descriptor's.
            ..0 => unsafe { libc::fcntl(stream.fd, libc::F_GETFD) == -1 },
            _ => stream.revents & libc::POLLNVAL != 0,
        };
        // SAFETY: the path ends with a NUL. The lowest free number is this stream's: those below it are
        // open by now.
        if is_closed && unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) } < 0 {
            // SAFETY: nothing has been begun that would have to be ended.
            unsafe { libc::abort() };
        }
    }
}

//! The program; what it does is the library's, so that its manual can be made from the same.

#![no_main]
#![expect(
    unsafe_code,
    reason = "the symbol that C's start-up calls; what it gets is `crust_mount::sys::entry`'s"
)]

use std::ffi::{c_char, c_int};

use crust_mount::sys::arena::Arena;
use crust_mount::sys::entry;

#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

// SAFETY: no other `main` is in this program: without `no_main` there would be Rust's.
#[unsafe(no_mangle)]
extern "C" fn main(count: c_int, arguments: *const *const c_char) -> c_int {
    // SAFETY: they are `main`'s own.
    unsafe { entry::run(count, arguments, runcrust::main) }
}

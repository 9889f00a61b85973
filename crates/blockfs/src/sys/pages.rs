//! Memory that is large enough to be mapped by itself.
//!
//! It grows by moving pages, not bytes: a list of a million mounts never takes its old and its new size at
//! once, and three times a config's size is enough for whatever it holds.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::ptr;

/// A page's size, or a part of it.
const PAGE: usize = 4096;
/// As in musl, and glibc.
const SMALLEST: usize = 128 * 1024;

/// Whether memory of such a layout is these functions'.
pub(super) fn are_for(layout: Layout) -> bool {
    layout.size() >= SMALLEST && layout.align() <= PAGE
}

/// As many zeros; null where there is no memory.
pub(super) fn take(size: usize) -> *mut u8 {
    mapped(size, libc::MAP_PRIVATE)
}

/// The same, and processes that are cloned from this one have the same pages and not copies.
pub(super) fn take_shared(size: usize) -> *mut u8 {
    mapped(size, libc::MAP_SHARED)
}

fn mapped(size: usize, whose: c_int) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = whose | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever there is room.
    unsafe { pointer(libc::mmap(ptr::null_mut(), size, access, kind, -1, 0)) }
}

/// Another size of it, perhaps elsewhere; null where there is no memory, and then it stays as it was.
///
/// # Safety
///
/// `taken` is what `take`, `take_shared` or this gave for the size `old`; once this gives something, only that is.
pub(super) unsafe fn resize(taken: *mut u8, old: usize, new: usize) -> *mut u8 {
    // SAFETY: the caller vouches that the pages are a mapping of ours. What is beyond sizes is up to their
    // last page's end, which nobody else has.
    unsafe { pointer(libc::mremap(taken.cast(), old, new, libc::MREMAP_MAYMOVE)) }
}

/// Gives it back.
///
/// # Safety
///
/// As above: and then it is nobody's.
pub(super) unsafe fn give_back(taken: *mut u8, size: usize) {
    // SAFETY: as above. It doesn't fail, but where a mapping would be parted and there are too many.
    unsafe { libc::munmap(taken.cast(), size) };
}

fn pointer(mapped: *mut c_void) -> *mut u8 {
    if mapped == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    mapped.cast()
}

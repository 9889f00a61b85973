//! Memory for a program that starts with every container and ends, or becomes another one, a moment later.
//!
//! What such a program needs at first comes out of a piece of its own image: no call of the kernel's, one
//! page to be touched or two, and nothing to be given back. Whatever is larger, or comes later, is dlmalloc's
//! or has pages of its own, and is freed: a walk over millions of files stays small. Musl's own is slow where
//! much is allocated (docs/performance.md).

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::GlobalDlmalloc;

use super::pages;

/// Several times what a command that is only handed on takes.
const SIZE: usize = 16 * 1024;
/// What is larger isn't one of the many small things at the start.
const LARGEST: usize = 1024;

/// To be a program's global allocator. In this order the counter and the first pieces are one page to be touched.
#[derive(Debug)]
#[repr(C)]
pub struct Arena {
    used: AtomicUsize,
    bytes: UnsafeCell<[u8; SIZE]>,
}

// SAFETY: `bytes` is only ever handed out in pieces, each to one caller: `take` gives no byte twice.
unsafe impl Sync for Arena {}

impl Arena {
    /// With nothing taken.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "there is one, and it is static")]
    pub const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            bytes: UnsafeCell::new([0; SIZE]),
        }
    }

    /// A piece that nobody has had; `None` where there is none left.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        let start = self.bytes.get().cast::<u8>();
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let padding = start.wrapping_add(used).align_offset(layout.align());
            let from = used.checked_add(padding)?;
            let to = from.checked_add(layout.size()).filter(|to| *to <= SIZE)?;
            let taken =
                self.used
                    .compare_exchange_weak(used, to, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                // Inside: `from` is at most `to`, and that at most `SIZE`.
                Ok(_) => return Some(start.wrapping_add(from)),
                Err(other) => used = other,
            }
        }
    }

    /// The same of what is small enough.
    fn small(&self, layout: Layout) -> Option<*mut u8> {
        (layout.size() <= LARGEST)
            .then(|| self.take(layout))
            .flatten()
    }

    fn holds(&self, pointer: *mut u8) -> bool {
        let start = self.bytes.get().addr();
        (start..start + SIZE).contains(&pointer.addr())
    }
}

// SAFETY: what `take` returns is inside `bytes`, aligned, as large as was asked for, nobody else's, and stays
// that for ever. All else is by its layout the room `pages`', or dlmalloc's, and each gets back what it gave.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(small) = self.small(layout) {
            return small;
        }
        if pages::are_for(layout) {
            return pages::take(layout.size());
        }
        // SAFETY: the caller's promises are passed on as they are.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // What is taken out of the arena has never been written to.
        if let Some(small) = self.small(layout) {
            return small;
        }
        if pages::are_for(layout) {
            return pages::take(layout.size());
        }
        // SAFETY: as above.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if self.holds(pointer) {
            return;
        }
        // SAFETY: it isn't the arena's, so `alloc` had it from there, for this layout.
        unsafe {
            if pages::are_for(layout) {
                pages::give_back(pointer, layout.size());
            } else {
                GlobalDlmalloc.dealloc(pointer, layout);
            }
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller vouches that the size, rounded up to the alignment, is no overflow.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !self.holds(pointer) {
            let (before, after) = (pages::are_for(layout), pages::are_for(wanted));
            if before && after {
                // SAFETY: as in `dealloc`; the caller takes what this gives.
                return unsafe { pages::resize(pointer, layout.size(), size) };
            }
            if !before && !after {
                // SAFETY: as in `dealloc`.
                return unsafe { GlobalDlmalloc.realloc(pointer, layout, size) };
            }
        }
        // SAFETY: the old bytes are valid for `layout`, the new ones for `wanted`, and they don't overlap: the
        // old ones are still taken.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                ptr::copy_nonoverlapping(pointer, new, layout.size().min(size));
                self.dealloc(pointer, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_nobody_elses_aligned_and_kept_when_it_grows() {
        let arena = Arena::new();
        let mut given = Vec::new();
        // Past the arena's end, and with sizes that are never its.
        for (size, align) in [
            (1, 1),
            (7, 8),
            (24, 8),
            (1000, 64),
            (5000, 16),
            // Across the border, and on its other side.
            (100_000, 8),
            (200_000, 4096),
        ]
        .into_iter()
        .cycle()
        .take(200)
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: no size is zero; what is written is inside what was given.
            let pointer = unsafe {
                let pointer = arena.alloc(layout);
                assert_eq!(pointer.addr() % align, 0);
                pointer.write_bytes(u8::try_from(given.len() % 251).unwrap(), size);
                pointer
            };
            given.push((pointer, layout));
        }
        assert!(given.iter().any(|(pointer, _)| arena.holds(*pointer)));
        assert!(
            given
                .iter()
                .any(|(pointer, layout)| layout.size() == 1 && !arena.holds(*pointer))
        );
        for (index, (pointer, layout)) in given.into_iter().enumerate() {
            // SAFETY: each is what was given for its layout, is as large as is read, and is given back once.
            unsafe {
                let grown = arena.realloc(pointer, layout, layout.size() * 3);
                let bytes = std::slice::from_raw_parts(grown, layout.size());
                assert!(
                    bytes.iter().all(|byte| usize::from(*byte) == index % 251),
                    "{index}"
                );
                arena.dealloc(
                    grown,
                    Layout::from_size_align(layout.size() * 3, layout.align()).unwrap(),
                );
            }
        }
        for size in [4000, 300_000] {
            // SAFETY: the size isn't zero, and the bytes are read as far as they go.
            unsafe {
                let layout = Layout::from_size_align(size, 8).unwrap();
                let zeroed = arena.alloc_zeroed(layout);
                assert!(
                    std::slice::from_raw_parts(zeroed, size)
                        .iter()
                        .all(|byte| *byte == 0)
                );
                // Smaller, on this side of the border or beyond it.
                let less = arena.realloc(zeroed, layout, 3000);
                assert!(
                    std::slice::from_raw_parts(less, 3000)
                        .iter()
                        .all(|byte| *byte == 0)
                );
                arena.dealloc(less, Layout::from_size_align(3000, 8).unwrap());
            }
        }
    }
}

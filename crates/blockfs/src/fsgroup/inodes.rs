//! Every inode of a file system, as its tables have them: whether a walk from name to name would find
//! anything to change, in a small part of its time.
//!
//! It is a proof or it is nothing. Inodes count whether a name leads to them or not, and what isn't
//! understood, or can't be read, is left to the walk.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{fstat, fstatfs};

use super::change::{self, Standing};
use crate::device::DeviceFacts;
use crate::fstypes::{self, Inode, Survey};

/// Returns how many inodes the file system has, where each is as it should be. `None` says nothing: one isn't, or
/// can't be asked, or `goes_on` says no.
///
/// `root` is any directory of the file system, open for reading, and `device` the one it is on.
pub(super) fn all_right(
    root: BorrowedFd<'_>,
    device: &DeviceFacts,
    group: u32,
    mut goes_on: impl FnMut() -> bool,
) -> Option<u64> {
    let (stat, whole) = (fstat(root).ok()?, fstatfs(root).ok()?);
    // That what was looked at is the file system that it was to be.
    let met_root = AtomicBool::new(false);
    let is_right = |number: u64, inode: Inode| {
        if number == stat.st_ino {
            met_root.store(true, Ordering::Relaxed);
        }
        change::needed(&Standing::new(inode.mode, inode.group), group).is_none()
    };
    if !goes_on() {
        return None;
    }
    let tables = fstypes::inode_tables(whole.f_type)?;
    let inodes = (tables.all_right)(Survey {
        root,
        whole: &whole,
        device,
        is_right: &is_right,
        goes_on: &mut goes_on,
    });
    inodes.filter(|_| met_root.into_inner())
}

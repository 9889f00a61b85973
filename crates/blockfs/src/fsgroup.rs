//! fsGroup: changes the group and the mode of all files of a volume by kubelet's rules (`pkg/volume/volume_linux.go`).

mod batch;
mod change;
mod directory;
mod distinct_entries;
mod entry;
mod error;
mod pool;
mod progress;
mod queue;
mod walk;
mod worker;

use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::Deadline;

pub use error::FsGroupError;
pub use progress::{EntryCounts, WalkProgress};

use progress::{ClockInterval, ReportInterval};
use walk::{ContinueCheck, Walk};
use worker::Worker;

use crate::device::DeviceFacts;

/// Interval of progress reports during a long walk. kubelet logs at the same interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);
/// Number of entries between two progress reports of a large walk.
const REPORT_INTERVAL_ENTRIES: u64 = 100_000;

/// The result of applying fsGroup to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsGroupOutcome {
    /// The policy is `OnRootMismatch`, and the volume's root already has the group and the mode. Nothing else was
    /// checked.
    RootMatches,
    /// The file system's inode tables show that every inode already has the group and the mode. There was no walk.
    AllInodesMatch {
        /// Number of inodes in use.
        inodes: u64,
        /// Time that reading the tables took.
        elapsed: Duration,
    },
    /// Nothing was changed, because access(2) on the root fails with EROFS. kubelet skips read-only mounts too. There
    /// are three possible reasons:
    /// - The mount is read-only.
    /// - The file system is read-only by design: a squashfs, an erofs, an ext4 with the feature `read-only`, a btrfs
    ///   snapshot.
    /// - The file system became read-only after an error, while another pod used it. The caller can find that out,
    ///   since it knows how it mounted the volume.
    ReadOnly,
    /// All entries were checked, and changed where needed.
    Applied(WalkProgress),
}

impl fmt::Display for FsGroupOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RootMatches => f.write_str(
                "the volume's root already has the group and mode; nothing else was checked",
            ),
            Self::AllInodesMatch { inodes, elapsed } => {
                let elapsed = elapsed.as_secs();
                write!(
                    f,
                    "all {inodes} inodes already have the group and mode, in {elapsed} s"
                )
            }
            Self::ReadOnly => f.write_str("the file system is read-only; nothing was changed"),
            Self::Applied(progress) => progress.fmt(f),
        }
    }
}

/// The group to apply to a volume's files, and how to apply it.
#[derive(Debug, Clone, Copy)]
pub struct FsGroupRequest<'a> {
    /// Group id: the pod's `fsGroup`. 4294967295 is refused, because chown(2) takes it for "don't change".
    pub group: u32,
    /// Whether to stop if the volume's root already has the group and the mode.
    pub policy: FsGroupChangePolicy,
    /// The device of the file system, if its inode tables may be read before the walk. They show in less time that
    /// nothing needs a change. `None`: always walk.
    pub device: Option<&'a DeviceFacts>,
    /// Whether another pod may change the tree during the walk. The walk is then repeated until a pass finds nothing
    /// left to change. That finds entries that were moved from an unvisited to a visited directory.
    pub in_use: bool,
}

/// Gives everything below `root`, and finally `root` itself, to the group.
///
/// Calls lchown(-1, group), and sets the mode to `mode | 0660` for files and `mode | 02770` for directories, where
/// `mode` is the mode before the chown. Doesn't write to entries that already have the group and the mode.
///
/// `root` is the directory at the root of the volume. It may be opened with `O_PATH`, and may be a detached mount.
/// Symbolic links aren't followed. Other mounts aren't entered; the subvolumes of a btrfs belong to this mount.
///
/// The tree may be in use. Entries that disappear during the walk are skipped. If a directory was moved, the walk is
/// repeated, at most eight times in all.
///
/// Blocks until the walk has ended or the deadline has passed; starts threads for a large tree, which have all ended
/// when this returns. `report` is called on the caller's thread, every 30 seconds and every 100,000 entries. Before
/// Linux 6.6 /proc must be a procfs.
///
/// If this fails or the deadline passes, the root hasn't been changed yet. So a later call does the rest, also with
/// `OnRootMismatch`.
pub fn apply(
    root: impl AsFd,
    request: &FsGroupRequest<'_>,
    deadline: Deadline,
    report: &mut dyn FnMut(&WalkProgress),
) -> Result<FsGroupOutcome, FsGroupError> {
    let start = Instant::now();
    let mut report_interval = ReportInterval::new(REPORT_INTERVAL, REPORT_INTERVAL_ENTRIES);
    let mut clock_interval = ClockInterval::default();
    let mut check_continue = |counts: &EntryCounts| {
        if !clock_interval.is_due(counts.entries)
            && !report_interval.is_due_by_count(counts.entries)
        {
            return ControlFlow::Continue(());
        }
        let elapsed = start.elapsed();
        let counts = *counts;
        if report_interval.is_due(elapsed, counts.entries) {
            report(&WalkProgress { counts, elapsed });
        }
        if deadline.is_expired() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let outcome = run(root.as_fd(), request, &mut check_continue)?;
    let elapsed = start.elapsed();
    Ok(match outcome {
        UntimedOutcome::RootMatches => FsGroupOutcome::RootMatches,
        UntimedOutcome::AllInodesMatch(inodes) => {
            FsGroupOutcome::AllInodesMatch { inodes, elapsed }
        }
        UntimedOutcome::ReadOnly => FsGroupOutcome::ReadOnly,
        UntimedOutcome::Applied(counts) => {
            FsGroupOutcome::Applied(WalkProgress { counts, elapsed })
        }
    })
}

/// [`FsGroupOutcome`] without the elapsed time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UntimedOutcome {
    RootMatches,
    AllInodesMatch(u64),
    ReadOnly,
    Applied(EntryCounts),
}

/// Does the work of [`apply`] without a clock.
///
/// Calls `check_continue` on the caller's thread: before each entry that this thread handles, and at intervals while it
/// waits for the other threads.
fn run(
    root: BorrowedFd<'_>,
    request: &FsGroupRequest<'_>,
    check_continue: ContinueCheck<'_>,
) -> Result<UntimedOutcome, FsGroupError> {
    let group = request.group;
    // chown(2) takes this number for "don't change the group".
    if group == u32::MAX {
        return Err(FsGroupError::InvalidGroup { group });
    }
    let mut walk = Walk::new(root, group)?;
    let attributes = walk.root_attributes()?;
    if request.policy == FsGroupChangePolicy::OnRootMismatch
        && change::root_matches(&attributes, group)
    {
        return Ok(UntimedOutcome::RootMatches);
    }
    if walk.is_read_only() {
        return Ok(UntimedOutcome::ReadOnly);
    }
    // The inode tables are only read if the root needs no change. The root is changed last, so if it needs a change,
    // other entries need one too, and the walk is required anyway.
    let device = request
        .device
        .filter(|_| change::needed(&attributes, group).is_none());
    let matching = device.and_then(|device| walk.count_matching_inodes(device, check_continue));
    match matching {
        Some(inodes) => Ok(UntimedOutcome::AllInodesMatch(inodes)),
        None => walk_tree(&mut walk, request.in_use, check_continue).map(UntimedOutcome::Applied),
    }
}

/// Maximum number of passes over a tree that is in use.
const MAX_PASSES: usize = 8;

/// Changes everything below the root, with as many workers as the work needs, and then the root. All workers
/// have ended when this returns.
///
/// A pass misses entries that are moved from an unvisited to a visited directory. If the tree is in use, the walk is
/// therefore repeated if the last pass changed an entry that is older than the walk, or found a listed directory gone.
///
/// It isn't repeated for a listed file that is gone. Temporary files come and go in any tree in use, so the walk of a
/// busy tree would always take all passes. Directories disappear rarely, and a missed directory hides everything below
/// it. As a result, an old file is missed if it is moved ahead of every pass, or ahead of a single pass that finds
/// nothing else to change. kubelet makes a single pass.
fn walk_tree(
    walk: &mut Walk,
    in_use: bool,
    check_continue: ContinueCheck<'_>,
) -> Result<EntryCounts, FsGroupError> {
    let mut passes = 0;
    loop {
        walk.begin_pass()?;
        let walk = &*walk;
        walk.pool.push_directory(walk.root.clone());
        thread::scope(|scope| Worker::new(walk, scope, Some(&mut *check_continue)).run());
        passes += 1;
        let is_last = passes == MAX_PASSES;
        match walk.moved_directory() {
            _ if walk.pool.is_halted() => break,
            Some(_) if !is_last => {}
            Some(path) => return Err(FsGroupError::KeepsChanging { path }),
            None if in_use && walk.needs_another_pass() && !is_last => {}
            None => break,
        }
    }
    walk.end(check_continue)
}

/// The policy that decides when fsGroup is applied to a volume (`metadata.fsGroupChangePolicy`). The names are those
/// of `PodSecurityContext.fsGroupChangePolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsGroupChangePolicy {
    /// fsGroup is applied each time the volume is mounted for a pod.
    #[default]
    Always,
    /// fsGroup is applied only if the volume's root doesn't already have the group and the mode.
    OnRootMismatch,
}

impl FsGroupChangePolicy {
    /// Returns this policy if the volume has a group, and the default otherwise.
    ///
    /// kubelet sends a policy whenever the pod has one, but without a group it has no meaning. Replacing it by the
    /// default makes descriptions of the same volume equal.
    #[must_use]
    pub fn with_group(self, group: Option<u32>) -> Self {
        group.map_or_else(Self::default, |_| self)
    }
}

/// The error for a string that isn't an `fsGroupChangePolicy`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} isn't an fsGroupChangePolicy (one of Always, OnRootMismatch)")]
pub struct ParsePolicyError(String);

impl FsGroupChangePolicy {
    /// Returns the name that Kubernetes uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnRootMismatch => "OnRootMismatch",
        }
    }
}

impl FromStr for FsGroupChangePolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, ParsePolicyError> {
        [Self::Always, Self::OnRootMismatch]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| ParsePolicyError(text.to_owned()))
    }
}

impl fmt::Display for FsGroupChangePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;

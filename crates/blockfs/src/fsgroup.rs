//! fsGroup: gives a volume's files to a pod's group by kubelet's rules (its `pkg/volume/volume_linux.go`).

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
use walk::{Observe, Walk};
use worker::Worker;

use crate::device::DeviceFacts;

/// The interval of progress reports of a long walk (kubelet logs at this interval too).
const PROGRESS_EVERY: Duration = Duration::from_secs(30);
/// The number of entries between two reports of a large walk.
const PROGRESS_EVERY_ENTRIES: u64 = 100_000;

/// The outcome of applying fsGroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsGroupOutcome {
    /// `OnRootMismatch`, and the root matches: nothing else was looked at.
    RootMatches,
    /// The file system's tables say that each of its `inodes` is right: no entry was looked at.
    AllInodesMatch {
        /// Those in use.
        inodes: u64,
        /// Since it began.
        elapsed: Duration,
    },
    /// Nothing was changed, because the root answers EROFS. kubelet skips read-only mounts too. Either
    /// - the mount is read-only, or
    /// - the file system is by its nature (squashfs, erofs, an ext4 with the feature `read-only`, a btrfs
    ///   snapshot), or
    /// - the file system has become read-only after an error, which another pod's use has caused. The
    ///   caller can tell, since it knows what it has mounted.
    ReadOnly,
    /// Every entry was looked at.
    Applied(WalkProgress),
}

impl fmt::Display for FsGroupOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RootMatches => f.write_str("the root matches, and nothing else was looked at"),
            Self::AllInodesMatch { inodes, elapsed } => {
                let elapsed = elapsed.as_secs();
                write!(f, "all {inodes} inodes are right already, in {elapsed} s")
            }
            Self::ReadOnly => f.write_str("the file system is read-only, and nothing was changed"),
            Self::Applied(progress) => progress.fmt(f),
        }
    }
}

/// The group that is to be applied to a volume's files, and how.
#[derive(Debug, Clone, Copy)]
pub struct FsGroupRequest<'a> {
    /// The pod's `fsGroup`.
    pub group: u32,
    /// When fsGroup is applied.
    pub policy: FsGroupChangePolicy,
    /// The device that the file system is on, if its tables of inodes may be read before any entry is. They tell sooner
    /// that there is nothing to do.
    pub device: Option<&'a DeviceFacts>,
    /// Another pod may be changing the tree during the walk. The walk is then repeated until a pass
    /// finds nothing left to change, so that entries moved from an unvisited to a visited directory are
    /// found.
    pub in_use: bool,
}

/// Gives everything below `root`, and at last `root` itself, to the group: lchown(-1, group), files
/// mode | 0660, directories mode | 02770, from the mode before the chown. What is right already
/// isn't written to.
///
/// `root` is the root of the volume, a directory; `O_PATH` will do, a detached mount too. Links
/// aren't followed and other mounts not entered; subvolumes of a btrfs are of this mount. A live
/// tree is allowed: entries that vanish meanwhile are skipped, and if a directory was moved the walk is
/// repeated, eight times at most. `progress` is called every 30 seconds
/// and every 100,000 entries; /proc must be a procfs.
///
/// When it fails, or the deadline passes, the root isn't changed yet: a later call, also with
/// `OnRootMismatch`, does the rest.
pub fn apply(
    root: impl AsFd,
    order: &FsGroupRequest<'_>,
    deadline: Deadline,
    progress: &mut dyn FnMut(&WalkProgress),
) -> Result<FsGroupOutcome, FsGroupError> {
    let start = Instant::now();
    let mut pace = ReportInterval::new(PROGRESS_EVERY, PROGRESS_EVERY_ENTRIES);
    let mut looks = ClockInterval::default();
    let mut observe = |counts: &EntryCounts| {
        if !looks.is_due(counts.entries) && !pace.has_come_to(counts.entries) {
            return ControlFlow::Continue(());
        }
        let elapsed = start.elapsed();
        let counts = *counts;
        if pace.is_due(elapsed, counts.entries) {
            progress(&WalkProgress { counts, elapsed });
        }
        if deadline.is_expired() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let found = run(root.as_fd(), order, &mut observe)?;
    let elapsed = start.elapsed();
    Ok(match found {
        Found::RootMatches => FsGroupOutcome::RootMatches,
        Found::AllRight(inodes) => FsGroupOutcome::AllInodesMatch { inodes, elapsed },
        Found::ReadOnly => FsGroupOutcome::ReadOnly,
        Found::Walked(counts) => FsGroupOutcome::Applied(WalkProgress { counts, elapsed }),
    })
}

/// [`FsGroupOutcome`] without the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    RootMatches,
    AllRight(u64),
    ReadOnly,
    Walked(EntryCounts),
}

/// [`apply`] without clocks: `observe` is asked whether to go on before each entry that is the
/// caller's own thread's, and now and then while it waits for others.
fn run(
    root: BorrowedFd<'_>,
    order: &FsGroupRequest<'_>,
    observe: Observe<'_>,
) -> Result<Found, FsGroupError> {
    let group = order.group;
    // chown(2) takes it for "leave the group alone".
    if group == u32::MAX {
        return Err(FsGroupError::InvalidGroup { group });
    }
    let mut walk = Walk::new(root, group)?;
    let attributes = walk.root_attributes()?;
    if order.policy == FsGroupChangePolicy::OnRootMismatch
        && change::root_matches(&attributes, group)
    {
        return Ok(Found::RootMatches);
    }
    if walk.is_read_only() {
        return Ok(Found::ReadOnly);
    }
    // The root is changed last: where it isn't right, others aren't.
    let device = order
        .device
        .filter(|_| change::needed(&attributes, group).is_none());
    let right = device.and_then(|device| walk.all_right(device, observe));
    match right {
        Some(inodes) => Ok(Found::AllRight(inodes)),
        None => walked(&mut walk, order.in_use, observe).map(Found::Walked),
    }
}

/// Maximum number of passes over a tree that others change meanwhile.
const PASSES: usize = 8;

/// Changes everything below the root, by as many workers as the work needs, and then the root. All workers
/// have ended when this returns.
///
/// A pass misses entries that are moved from an unvisited to a visited directory. In a `live` tree the
/// walk is repeated if the last pass changed an entry older than the walk, or found a listed directory
/// gone. A listed file that is gone is no reason: temporary files come and go in any tree in use, and the
/// walk of a busy one would always take all passes, where a directory is rare and hides all that is below
/// it. So an old file is missed that is moved ahead of every pass, or of a single pass that finds all else
/// right. kubelet makes a single pass.
fn walked(walk: &mut Walk, live: bool, observe: Observe<'_>) -> Result<EntryCounts, FsGroupError> {
    let mut passes = 0;
    loop {
        walk.begin_pass()?;
        let walk = &*walk;
        walk.pool.push_listing(walk.root.clone());
        thread::scope(|scope| Worker::new(walk, scope, Some(&mut *observe)).work());
        passes += 1;
        let is_last = passes == PASSES;
        match walk.left_behind() {
            _ if walk.pool.is_halted() => break,
            Some(_) if !is_last => {}
            Some(path) => return Err(FsGroupError::KeepsChanging { path }),
            None if live && walk.is_unsettled() && !is_last => {}
            None => break,
        }
    }
    walk.end(observe)
}

/// When fsGroup is applied to a volume (`metadata.fsGroupChangePolicy`; the names are those of
/// `PodSecurityContext.fsGroupChangePolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsGroupChangePolicy {
    /// Every time the volume is mounted for a pod.
    #[default]
    Always,
    /// Only where the volume's root doesn't already have the group and the permissions.
    OnRootMismatch,
}

impl FsGroupChangePolicy {
    /// The policy of a volume with this group. Without a group a policy means nothing: kubelet sends one whenever
    /// the pod has one. It is then the default, so that the same volume is described in one way.
    #[must_use]
    pub fn with_group(self, group: Option<u32>) -> Self {
        group.map_or_else(Self::default, |_| self)
    }
}

/// A string that isn't an `fsGroupChangePolicy`.
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

//! fsGroup: a volume's files become a pod's group's, by kubelet's rules (its
//! `pkg/volume/volume_linux.go`).

mod batch;
mod change;
mod crew;
mod directory;
mod error;
mod names;
mod pace;
mod queue;
mod touch;
mod walk;
mod worker;

use std::fmt;
use std::ops::{Add, AddAssign, ControlFlow};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crust_state::{Deadline, FsGroupChangePolicy};

pub use error::FsGroupError;

use pace::{Looks, Pace};
use touch::Touched;
use walk::{Observe, Walk};

/// How often the caller hears of a long walk (kubelet logs at this pace too).
const PROGRESS_EVERY: Duration = Duration::from_secs(30);
/// And of a large one.
const PROGRESS_EVERY_ENTRIES: u64 = 100_000;

/// How far a walk has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// What was looked at.
    pub counts: Counts,
    /// Since the walk began.
    pub elapsed: Duration,
}

impl fmt::Display for Progress {
    /// `1200 entries looked at, 300 changed, in 31 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            entries,
            changed,
            immutable,
            read_only,
            other_mounts,
        } = self.counts;
        write!(f, "{entries} entries looked at, {changed} changed")?;
        if immutable > 0 {
            write!(f, ", {immutable} immutable and left as they were")?;
        }
        if read_only > 0 {
            write!(
                f,
                ", {read_only} in read-only subvolumes and left as they were"
            )?;
        }
        if other_mounts > 0 {
            write!(f, ", {other_mounts} other mounts left out")?;
        }
        write!(f, ", in {} s", self.elapsed.as_secs())
    }
}

/// What a walk met. A hard link counts under each of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Entries looked at, of whatever kind.
    pub entries: u64,
    /// Those that weren't right yet and are now.
    pub changed: u64,
    /// Those that weren't right and are immutable or append-only (chattr(1)): left as they are.
    /// kubelet logs such failures and goes on; any other failure is an error here.
    pub immutable: u64,
    /// Those that weren't right and are in a read-only subvolume of a btrfs, a snapshot: left as
    /// they are too.
    pub read_only: u64,
    /// Those left out because another mount is there.
    pub other_mounts: u64,
}

impl Counts {
    fn add(&mut self, touched: Touched) {
        self.entries += 1;
        match touched {
            Touched::Right => {}
            Touched::Changed => self.changed += 1,
            Touched::Immutable => self.immutable += 1,
            Touched::ReadOnly => self.read_only += 1,
        }
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            entries: self.entries + other.entries,
            changed: self.changed + other.changed,
            immutable: self.immutable + other.immutable,
            read_only: self.read_only + other.read_only,
            other_mounts: self.other_mounts + other.other_mounts,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// `OnRootMismatch`, and the root matches: nothing else was looked at.
    RootMatches,
    /// Every entry was looked at.
    Applied(Progress),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RootMatches => f.write_str("the root matches, and nothing else was looked at"),
            Self::Applied(progress) => progress.fmt(f),
        }
    }
}

/// Gives everything below `root`, and at last `root` itself, to `group`: lchown(-1, group), files
/// mode | 0660, directories mode | 02770, from the mode before the chown. What is right already
/// isn't written to.
///
/// `root` is the root of the volume, a directory; `O_PATH` will do, a detached mount too. Links
/// aren't followed and other mounts not entered; subvolumes of a btrfs are of this mount. A live
/// tree is allowed: what vanishes meanwhile is passed over. `progress` is called every 30 seconds
/// and every 100,000 entries; /proc must be a procfs.
///
/// When it fails, or the deadline passes, the root isn't changed yet: a later call, also with
/// `OnRootMismatch`, does the rest.
pub fn apply(
    root: impl AsFd,
    group: u32,
    policy: FsGroupChangePolicy,
    deadline: Deadline,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, FsGroupError> {
    let start = Instant::now();
    let mut pace = Pace::new(PROGRESS_EVERY, PROGRESS_EVERY_ENTRIES);
    let mut looks = Looks::default();
    let mut observe = |counts: &Counts| {
        if !looks.is_due(counts.entries) && !pace.has_come_to(counts.entries) {
            return ControlFlow::Continue(());
        }
        let elapsed = start.elapsed();
        let counts = *counts;
        if pace.is_due(elapsed, counts.entries) {
            progress(&Progress { counts, elapsed });
        }
        if deadline.expired() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let counts = run(root.as_fd(), group, policy, &mut observe)?;
    Ok(counts.map_or(Outcome::RootMatches, |counts| {
        let elapsed = start.elapsed();
        Outcome::Applied(Progress { counts, elapsed })
    }))
}

/// [`apply`] without clocks: `observe` is asked whether to go on before each entry that is the
/// caller's own thread's, and now and then while it waits for others. `None` when the policy leaves
/// nothing to do.
fn run(
    root: BorrowedFd<'_>,
    group: u32,
    policy: FsGroupChangePolicy,
    observe: Observe<'_>,
) -> Result<Option<Counts>, FsGroupError> {
    // chown(2) takes it for "leave the group alone".
    if group == u32::MAX {
        return Err(FsGroupError::NotAGroup { group });
    }
    let walk = Walk::new(root, group)?;
    let standing = walk.root_standing()?;
    if policy == FsGroupChangePolicy::OnRootMismatch && change::root_matches(&standing, group) {
        return Ok(None);
    }
    walk.run(observe).map(Some)
}

#[cfg(test)]
mod tests;

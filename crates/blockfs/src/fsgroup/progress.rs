//! The progress of a walk, and the intervals at which the walk reads the clock and reports. All functions are pure: the
//! time is a parameter.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// The progress of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkProgress {
    /// Numbers of entries so far, in all passes.
    pub counts: EntryCounts,
    /// Time since the walk began.
    pub elapsed: Duration,
}

impl fmt::Display for WalkProgress {
    /// Writes, for example, `1200 entries checked, 300 changed, in 31 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntryCounts {
            entries,
            changed,
            immutable,
            read_only,
            other_mounts,
        } = self.counts;
        write!(f, "{entries} entries checked, {changed} changed")?;
        if immutable > 0 {
            write!(f, ", {immutable} immutable and left unchanged")?;
        }
        if read_only > 0 {
            write!(
                f,
                ", {read_only} in read-only subvolumes and left unchanged"
            )?;
        }
        if other_mounts > 0 {
            write!(f, ", {other_mounts} other mounts skipped")?;
        }
        write!(f, ", in {} s", self.elapsed.as_secs())
    }
}

/// The result for one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOutcome {
    /// The entry already had the group and the mode.
    Matches,
    Changed,
    Immutable,
    /// The entry is in a read-only subvolume of a btrfs.
    ReadOnly,
}

/// Numbers of entries that a walk has found. A file counts once for each of its hard links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryCounts {
    /// Entries of any type that were checked.
    pub entries: u64,
    /// Entries that were changed.
    pub changed: u64,
    /// Entries that need a change and couldn't get it, because they are immutable or append-only (chattr(1)). kubelet
    /// logs any failed change and continues; here all other failures are errors.
    pub immutable: u64,
    /// Entries that need a change and couldn't get it, because they are in a read-only subvolume of a btrfs, such as a
    /// snapshot.
    pub read_only: u64,
    /// Entries that were skipped because they are on another mount. They aren't included in `entries`.
    pub other_mounts: u64,
}

impl EntryCounts {
    pub(super) fn count(&mut self, outcome: EntryOutcome) {
        self.entries += 1;
        match outcome {
            EntryOutcome::Matches => {}
            EntryOutcome::Changed => self.changed += 1,
            EntryOutcome::Immutable => self.immutable += 1,
            EntryOutcome::ReadOnly => self.read_only += 1,
        }
    }
}

impl Add for EntryCounts {
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

impl AddAssign for EntryCounts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// Number of entries between two readings of the clock. It keeps their cost low.
const CLOCK_INTERVAL_ENTRIES: u64 = 16;

/// The interval at which the clock is read: each [`CLOCK_INTERVAL_ENTRIES`] entries, and whenever the number of
/// entries hasn't changed since the last call. A walk that handles no more entries may have waited for a long time.
#[derive(Debug, Default)]
pub(super) struct ClockInterval {
    /// Count at the last time that the clock was due.
    last: Option<u64>,
    /// Count at the last call.
    previous: u64,
}

impl ClockInterval {
    pub(super) fn is_due(&mut self, entries: u64) -> bool {
        let since = self.last.map(|last| entries.saturating_sub(last));
        // Without progress since the last call, this thread waits or lists a large directory.
        let is_same = entries == std::mem::replace(&mut self.previous, entries);
        let due = since.is_none_or(|since| is_same || since >= CLOCK_INTERVAL_ENTRIES);
        if due {
            self.last = Some(entries);
        }
        due
    }
}

/// The interval of progress reports: one at each multiple of a number of entries, and one when there was none for a
/// certain time.
#[derive(Debug)]
pub(super) struct ReportInterval {
    time: Duration,
    entries: u64,
    next_time: Duration,
    next_entries: u64,
}

impl ReportInterval {
    pub(super) fn new(time: Duration, entries: u64) -> Self {
        Self {
            time,
            entries,
            next_time: time,
            next_entries: entries,
        }
    }

    /// Returns true if a report is due because of the number of entries, whatever the time.
    pub(super) fn is_due_by_count(&self, entries: u64) -> bool {
        entries >= self.next_entries
    }

    /// Returns true if a report is due after `elapsed` since the start and after `entries` entries, and schedules the
    /// next one. If several intervals have passed since the last call, only one report is due.
    pub(super) fn is_due(&mut self, elapsed: Duration, entries: u64) -> bool {
        let by_count = self.is_due_by_count(entries);
        if by_count {
            // The next round number, also after reports that were due by time.
            let times = entries / self.entries;
            self.next_entries = self.entries.saturating_mul(times + 1);
        }
        let due = by_count || elapsed >= self.next_time;
        if due {
            self.next_time = elapsed.saturating_add(self.time);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_read_first_every_16_entries_and_when_idle() {
        let mut interval = ClockInterval::default();
        for (entries, due) in [
            (0, true),
            (0, true),
            (1, false),
            (15, false),
            (16, true),
            (16, true),
            (31, false),
            (31, true),
            (2000, true),
            (2001, false),
            (2001, true),
            (2002, false),
        ] {
            assert_eq!(interval.is_due(entries), due, "after {entries} entries");
        }
    }

    #[test]
    fn a_report_is_due_once_in_an_interval() {
        let mut interval = ReportInterval::new(Duration::from_secs(30), u64::MAX);
        for (elapsed, due) in [
            (0, false),
            (29, false),
            (30, true),
            (31, false),
            (59, false),
            (60, true),
            (200, true),
            (201, false),
            (229, false),
            (230, true),
        ] {
            assert_eq!(
                interval.is_due(Duration::from_secs(elapsed), elapsed),
                due,
                "after {elapsed} s"
            );
        }
    }

    #[test]
    fn a_report_is_due_at_each_multiple_of_the_number_of_entries() {
        let mut interval = ReportInterval::new(Duration::from_secs(30), 100);
        for (entries, due) in [
            (0, false),
            (99, false),
            (100, true),
            (100, false),
            (199, false),
            (200, true),
            (1000, true),
            (1001, false),
        ] {
            assert_eq!(
                interval.is_due(Duration::from_secs(1), entries),
                due,
                "after {entries} entries"
            );
        }
        assert!(interval.is_due(Duration::from_secs(31), 1050), "30 s later");
        assert!(!interval.is_due(Duration::from_secs(31), 1099));
        assert!(interval.is_due(Duration::from_secs(31), 1100), "by count");
    }
}

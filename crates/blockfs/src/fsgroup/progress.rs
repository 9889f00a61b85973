//! The progress of a walk, and the intervals at which it reads the clock and reports. Pure: the time is a parameter.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// The progress of a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkProgress {
    /// The entries so far.
    pub counts: EntryCounts,
    /// The time since the walk began.
    pub elapsed: Duration,
}

impl fmt::Display for WalkProgress {
    /// `1200 entries looked at, 300 changed, in 31 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EntryCounts {
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

/// The outcome for one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOutcome {
    Right,
    Changed,
    Immutable,
    ReadOnly,
}

/// Numbers of entries that a walk has found. A file counts once for each hard link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryCounts {
    /// Entries of any kind.
    pub entries: u64,
    /// Those that were changed.
    pub changed: u64,
    /// Those that needed a change and are immutable or append-only (chattr(1)), so that they stay as they are. kubelet
    /// logs such failures and goes on; any other failure is an error here.
    pub immutable: u64,
    /// Those that needed a change and are in a read-only subvolume of a btrfs, a snapshot: they stay as they are too.
    pub read_only: u64,
    /// Those that were left out because another mount is there.
    pub other_mounts: u64,
}

impl EntryCounts {
    pub(super) fn count(&mut self, outcome: EntryOutcome) {
        self.entries += 1;
        match outcome {
            EntryOutcome::Right => {}
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

/// The number of entries between two readings of the clock, which then cost little.
const ENTRIES_A_LOOK: u64 = 16;

/// The interval at which the clock is read: after a number of entries, and when there were no more entries since the
/// last reading, since each may have taken long.
#[derive(Debug, Default)]
pub(super) struct ClockInterval {
    last: Option<u64>,
}

impl ClockInterval {
    pub(super) fn is_due(&mut self, entries: u64) -> bool {
        let since = self.last.map(|last| entries.saturating_sub(last));
        let due = since.is_none_or(|since| since == 0 || since >= ENTRIES_A_LOOK);
        if due {
            self.last = Some(entries);
        }
        due
    }
}

/// The interval of progress reports: one at each multiple of a number of entries, and one after a time without.
#[derive(Debug)]
pub(super) struct ReportInterval {
    every: Duration,
    every_entries: u64,
    next: Duration,
    next_entry: u64,
}

impl ReportInterval {
    pub(super) fn new(every: Duration, every_entries: u64) -> Self {
        Self {
            every,
            every_entries,
            next: every,
            next_entry: every_entries,
        }
    }

    /// Whether a report is due by the number of entries alone.
    pub(super) fn has_come_to(&self, entries: u64) -> bool {
        entries >= self.next_entry
    }

    /// Whether a report is due, `elapsed` after the start and after so many `entries`. After a long time without there
    /// is one report, not one for each interval missed.
    pub(super) fn is_due(&mut self, elapsed: Duration, entries: u64) -> bool {
        let by_count = self.has_come_to(entries);
        if by_count {
            // Round numbers, whatever was reported in between.
            let times = entries / self.every_entries;
            self.next_entry = self.every_entries.saturating_mul(times + 1);
        }
        let due = by_count || elapsed >= self.next;
        if due {
            self.next = elapsed.saturating_add(self.every);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_read_first_every_16_entries_and_when_idle() {
        let mut looks = ClockInterval::default();
        for (entries, due) in [
            (0, true),
            (0, true),
            (1, false),
            (15, false),
            (16, true),
            (16, true),
            (31, false),
            (2000, true),
            (2001, false),
        ] {
            assert_eq!(looks.is_due(entries), due, "after {entries} entries");
        }
    }

    #[test]
    fn a_word_is_due_once_an_interval() {
        let mut pace = ReportInterval::new(Duration::from_secs(30), u64::MAX);
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
                pace.is_due(Duration::from_secs(elapsed), elapsed),
                due,
                "after {elapsed} s"
            );
        }
    }

    #[test]
    fn a_word_is_due_once_in_so_many_entries_however_fast_they_go() {
        let mut pace = ReportInterval::new(Duration::from_secs(30), 100);
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
                pace.is_due(Duration::from_secs(1), entries),
                due,
                "after {entries} entries"
            );
        }
        assert!(pace.is_due(Duration::from_secs(31), 1050), "30 s later");
        assert!(!pace.is_due(Duration::from_secs(31), 1099));
        assert!(pace.is_due(Duration::from_secs(31), 1100), "by count");
    }
}

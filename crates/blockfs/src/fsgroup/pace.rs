//! When the clock is looked at, and when the next word is due. Pure: time comes in.

use std::time::Duration;

/// A look at the clock is a part of what a look at an entry is.
const ENTRIES_A_LOOK: u64 = 16;

/// Whether it is time to look at the clock: after so many entries, and where there are no more of
/// them than at the last look, since each may have taken long.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last: Option<u64>,
}

impl Looks {
    pub(super) fn is_due(&mut self, entries: u64) -> bool {
        let since = self.last.map(|last| entries.saturating_sub(last));
        let due = since.is_none_or(|since| since == 0 || since >= ENTRIES_A_LOOK);
        if due {
            self.last = Some(entries);
        }
        due
    }
}

/// One word at each multiple of so many entries, and one where there was none for an interval.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    every_entries: u64,
    next: Duration,
    next_entry: u64,
}

impl Pace {
    pub(super) fn new(every: Duration, every_entries: u64) -> Self {
        Self {
            every,
            every_entries,
            next: every,
            next_entry: every_entries,
        }
    }

    /// Whether a word is due by the number of entries alone.
    pub(super) fn has_come_to(&self, entries: u64) -> bool {
        entries >= self.next_entry
    }

    /// Whether a word is due, `elapsed` after the start and after so many `entries`. After a long
    /// silence there is one word, not one for each interval missed.
    pub(super) fn is_due(&mut self, elapsed: Duration, entries: u64) -> bool {
        let by_count = self.has_come_to(entries);
        if by_count {
            // Round numbers, whatever was said in between.
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
    fn the_clock_is_looked_at_at_first_each_16_entries_and_where_nothing_goes_on() {
        let mut looks = Looks::default();
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
        let mut pace = Pace::new(Duration::from_secs(30), u64::MAX);
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
        let mut pace = Pace::new(Duration::from_secs(30), 100);
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

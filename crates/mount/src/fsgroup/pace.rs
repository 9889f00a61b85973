//! When the next word is due. Pure: time comes in.

use std::time::Duration;

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

    /// Whether a word is due, `elapsed` after the start and after so many `entries`. After a long
    /// silence there is one word, not one for each interval missed.
    pub(super) fn is_due(&mut self, elapsed: Duration, entries: u64) -> bool {
        let by_count = entries >= self.next_entry;
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

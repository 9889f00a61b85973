//! When the next word is due. Pure: time comes in.

use std::time::Duration;

/// One word per interval at most, none before the first interval is over.
#[derive(Debug)]
pub(super) struct Pace {
    every: Duration,
    next: Duration,
}

impl Pace {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, next: every }
    }

    /// Whether a word is due, `elapsed` after the start. After a long silence there is one word, not
    /// one for each interval missed.
    pub(super) fn is_due(&mut self, elapsed: Duration) -> bool {
        let due = elapsed >= self.next;
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
        let mut pace = Pace::new(Duration::from_secs(30));
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
                pace.is_due(Duration::from_secs(elapsed)),
                due,
                "after {elapsed} s"
            );
        }
    }
}

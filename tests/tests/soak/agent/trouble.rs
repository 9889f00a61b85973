//! Who is killed, and started anew.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use runcrust_tests::random::Random;

use super::site::Site;

/// At the most, in milliseconds, from one kill to the next: twice as long after each [`ENOUGH`] of them that nobody
/// has come further meanwhile. On a slow machine everything else would be undone again and again.
const PEACE: usize = 1_000;

const ENOUGH: usize = 4;

/// At the most, in milliseconds, until another one is started.
const ABSENCE: usize = 1_000;

/// Whoever kills.
pub(super) struct Trouble<'s> {
    site: &'s Site,
    random: Random,
    tally: [usize; 3],
    /// How far all were, and how many kills there have been since.
    in_vain: (usize, usize),
}

/// Who goes, and how.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// crustlet, by SIGKILL.
    Agent,
    /// crustlet, by SIGTERM.
    Asked,
    /// `crust_ops`, by SIGKILL.
    Ops,
}

const VICTIMS: [Victim; 6] = [
    Victim::Agent,
    Victim::Agent,
    Victim::Agent,
    Victim::Asked,
    Victim::Ops,
    Victim::Ops,
];

impl<'s> Trouble<'s> {
    pub(super) fn new(site: &'s Site, random: Random) -> Self {
        Self {
            site,
            random,
            tally: [0; 3],
            in_vain: (0, 0),
        }
    }

    /// Kills until the work is done. All run then.
    pub(super) fn during(&mut self, work: impl FnOnce() + Send) {
        let (done, is_done) = channel();
        thread::scope(|scope| {
            let working = scope.spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(work));
                let _ = done.send(());
                ended
            });
            loop {
                let peace = self.peace();
                match is_done.recv_timeout(peace) {
                    Err(RecvTimeoutError::Timeout) => self.kill(),
                    _ => break,
                }
            }
            let ended = working.join().expect("it panics within");
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    fn peace(&mut self) -> Duration {
        let progress = self.site.progress.load(Ordering::Relaxed);
        self.in_vain = match self.in_vain {
            (before, kills) if before == progress => (before, kills + 1),
            _ => (progress, 0),
        };
        let longest = PEACE << (self.in_vain.1 / ENOUGH).min(5);
        Duration::from_millis(self.random.below(longest) as u64)
    }

    fn kill(&mut self) {
        let victim = *self.random.pick(&VICTIMS);
        let absence = if self.random.once_in(2) {
            Duration::from_millis(self.random.below(ABSENCE) as u64)
        } else {
            Duration::ZERO
        };
        let Site { bed, .. } = self.site;
        match victim {
            Victim::Agent => bed.crustlet.kill(),
            Victim::Asked => drop(bed.crustlet.stop()),
            Victim::Ops => bed.ops.kill(),
        }
        thread::sleep(absence);
        match victim {
            Victim::Agent | Victim::Asked => self.site.start_agent(),
            Victim::Ops => bed.ops.spawn(bed.ops.command()),
        }
        self.tally[victim as usize] += 1;
    }

    /// How many there were.
    pub(super) fn kills(&self) -> usize {
        self.tally.iter().sum()
    }
}

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [agent, asked, ops] = self.tally;
        write!(
            formatter,
            "crustlet killed {agent} times and ended {asked} times, crust_ops killed {ops} times"
        )
    }
}

//! Kills and restarts daemons while pods run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use runcrust_tests::random::Random;

use super::node::AgentNode;

/// The longest time from one kill to the next, in milliseconds. It is doubled after each [`KILLS_WITHOUT_PROGRESS`]
/// kills in which no pod made progress. On a slow machine the pods would otherwise make none at all.
const LONGEST_PAUSE: usize = 1_000;

const KILLS_WITHOUT_PROGRESS: usize = 4;

/// The longest time until the daemon is started again, in milliseconds.
const LONGEST_DOWNTIME: usize = 1_000;

/// Kills a random daemon at random times.
pub(super) struct Killer<'s> {
    node: &'s AgentNode,
    random: Random,
    tally: [usize; 3],
    /// The progress of the pods at the last kill, and the number of kills since it changed.
    since_progress: (usize, usize),
}

/// The daemon that is ended, and the signal.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// crustlet, by SIGKILL.
    AgentKilled,
    /// crustlet, by SIGTERM.
    AgentStopped,
    /// `crust_ops`, by SIGKILL.
    Ops,
}

const VICTIMS: [Victim; 6] = [
    Victim::AgentKilled,
    Victim::AgentKilled,
    Victim::AgentKilled,
    Victim::AgentStopped,
    Victim::Ops,
    Victim::Ops,
];

impl<'s> Killer<'s> {
    pub(super) fn new(node: &'s AgentNode, random: Random) -> Self {
        Self {
            node,
            random,
            tally: [0; 3],
            since_progress: (0, 0),
        }
    }

    /// Kills daemons until `work` is done. All daemons run afterwards.
    pub(super) fn during(&mut self, work: impl FnOnce() + Send) {
        let (done, is_done) = channel();
        thread::scope(|scope| {
            let working = scope.spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(work));
                let _ = done.send(());
                ended
            });
            loop {
                let pause = self.pause();
                match is_done.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => self.kill(),
                    _ => break,
                }
            }
            let ended = working.join().expect("a thread");
            ended.unwrap_or_else(|panic| resume_unwind(panic));
        });
    }

    fn pause(&mut self) -> Duration {
        let progress = self.node.progress.load(Ordering::Relaxed);
        self.since_progress = match self.since_progress {
            (before, kills) if before == progress => (before, kills + 1),
            _ => (progress, 0),
        };
        let longest = LONGEST_PAUSE << (self.since_progress.1 / KILLS_WITHOUT_PROGRESS).min(5);
        Duration::from_millis(self.random.below(longest) as u64)
    }

    fn kill(&mut self) {
        let victim = *self.random.pick(&VICTIMS);
        let downtime = if self.random.once_in(2) {
            Duration::from_millis(self.random.below(LONGEST_DOWNTIME) as u64)
        } else {
            Duration::ZERO
        };
        let AgentNode { testbed, .. } = self.node;
        match victim {
            Victim::AgentKilled => testbed.crustlet.kill(),
            Victim::AgentStopped => drop(testbed.crustlet.stop()),
            Victim::Ops => testbed.ops.kill(),
        }
        thread::sleep(downtime);
        match victim {
            Victim::AgentKilled | Victim::AgentStopped => self.node.start_agent(),
            Victim::Ops => testbed.ops.spawn(testbed.ops.command()),
        }
        self.tally[victim as usize] += 1;
    }

    /// Returns the number of kills.
    pub(super) fn kills(&self) -> usize {
        self.tally.iter().sum()
    }
}

impl fmt::Display for Killer<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [agent_killed, agent_stopped, ops] = self.tally;
        write!(
            formatter,
            "crustlet killed {agent_killed} times and ended {agent_stopped} times, crust_ops killed {ops} times"
        )
    }
}

//! The programs that run, and all that they leave behind: nothing of it outlives its call, or us.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, kill_process, kill_process_group, set_child_subreaper,
    waitpid,
};
use tokio::process::{Child, Command};

/// Our children: those that answer, by pid, and whether their group may be killed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<HashMap<Pid, Group>>>);

/// A process group's number is its first process's, and nobody else's until that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Runs,
    Killed,
}

/// Between two looks at who is left: killed, they end a moment later, and then their children are
/// ours.
const MOMENT: Duration = Duration::from_millis(2);

/// Who doesn't end in that time is killed again after the next program.
const PATIENCE: Duration = Duration::from_secs(1);

impl Processes {
    /// From now on, who has lost his parent is a child of ours, also one that has left its process
    /// group (`PR_SET_CHILD_SUBREAPER(2const)`).
    pub(crate) fn adopt() -> io::Result<()> {
        Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
    }

    /// Starts a program, in a process group of its own.
    pub(super) fn spawn(&self, command: &mut Command) -> io::Result<Program> {
        // No look for orphans in between: it isn't one.
        let mut known = self.known();
        let child = command.process_group(0).spawn()?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or(io::ErrorKind::NotFound)?;
        known.insert(pid, Group::Runs);
        Ok(Program {
            child,
            pid,
            processes: self.clone(),
        })
    }

    /// Kills all of them and what they leave: nobody waits for their answers any more.
    pub(crate) async fn end(&self) {
        for (pid, group) in self.known().iter_mut() {
            group.kill(*pid);
        }
        let until = Instant::now() + PATIENCE;
        while !children().is_empty() && Instant::now() < until {
            self.kill_orphans();
            tokio::time::sleep(MOMENT).await;
        }
    }

    /// Kills what programs have left that are gone: whoever is a child of ours, and neither one of
    /// them nor of a group that runs. Whether there was anybody.
    fn kill_orphans(&self) -> bool {
        let known = self.known();
        let runs = |pid: &Pid| known.get(pid) == Some(&Group::Runs);
        let is_orphan = |pid: &Pid| {
            !known.contains_key(pid) && !getpgid(Some(*pid)).is_ok_and(|group| runs(&group))
        };
        let orphans: Vec<Pid> = children().into_iter().filter(is_orphan).collect();
        drop(known);
        for orphan in &orphans {
            let _ = kill_process(*orphan, Signal::KILL);
            let _ = waitpid(Some(*orphan), WaitOptions::NOHANG);
        }
        !orphans.is_empty()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Pid, Group>> {
        // Nothing in here panics half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    fn kill(&mut self, pid: Pid) {
        if *self == Self::Runs {
            // ESRCH is what is wanted.
            let _ = kill_process_group(pid, Signal::KILL);
            *self = Self::Killed;
        }
    }
}

/// Of all our threads: a child is its parent's thread's.
fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let lists =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let mut children = Vec::new();
    for list in lists {
        let pids = list.split_ascii_whitespace();
        children.extend(pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    children
}

/// A program that was started.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) child: Child,
    pub(super) pid: Pid,
    processes: Processes,
}

impl Program {
    /// Kills it, if it still runs, and all of its group.
    pub(super) fn kill(&self) {
        if let Some(group) = self.processes.known().get_mut(&self.pid) {
            group.kill(self.pid);
        }
    }

    /// Waits until it has ended, which one that is in the kernel's hands may never do, and ends what
    /// it has left, its group too. (That is no longer one by its number: it may be another's.)
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.processes.known().remove(&self.pid);
        let until = Instant::now() + PATIENCE;
        while self.processes.kill_orphans() && Instant::now() < until {
            tokio::time::sleep(MOMENT).await;
        }
        status
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

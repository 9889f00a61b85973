//! What our programs do to the system, a step at a time: a command's steps are found by tracing it
//! once, and then it can be killed right after each of them.
//!
//! ptrace(2) stops a program where a system call returns, so what the step was to do is done, and
//! nothing of what comes after it has begun. No program is built for it in any way.

mod instructions;
mod tracer;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command};
use std::str::FromStr;
use std::sync::mpsc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use self::instructions::instructions;
use self::tracer::{Tracer, stopped_before_exec};

/// A system call of one of our programs that worked and that changes something but the program
/// itself: files, mounts, namespaces, processes, locks. `crust-mount-hook publish renameat 2` is the
/// second of the hook's own, in the order in which they are made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The file's name, and what the hook was called for.
    pub program: String,
    /// As in syscalls(2).
    pub call: String,
    /// 1 is the first.
    pub nth: usize,
}

impl Step {
    /// Of a program, a call by its number.
    pub fn new(program: &str, call: &str, nth: usize) -> Self {
        Self {
            program: program.to_owned(),
            call: call.to_owned(),
            nth,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.program, self.call, self.nth)
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.trim().rsplitn(3, ' ');
        let nth = words.next().and_then(|nth| nth.parse().ok());
        match (nth, words.next(), words.next()) {
            (Some(nth), Some(call), Some(program)) => Ok(Self::new(program, call, nth)),
            _ => Err(format!("{text:?} is no `PROGRAM CALL NUMBER`")),
        }
    }
}

/// What came of a command that was traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct TraceOutcome {
    /// It ended with 0.
    pub success: bool,
    /// Whoever was to be killed came that far.
    pub killed: bool,
}

/// The steps of a command and of what it runs, in their order, and how it ended.
#[track_caller]
pub fn trace(
    command: &Command,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> (Vec<Step>, TraceOutcome) {
    let mut steps = Vec::new();
    let tracer = Tracer::new(|step: &Step| {
        steps.push(step.clone());
        false
    });
    let ended = run(tracer, command, spawn);
    (steps, ended)
}

/// The command, one of whose programs gets SIGKILL right after a step.
#[track_caller]
pub fn kill_after(
    command: &Command,
    step: &Step,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    kill_when(command, |made| made == step, spawn)
}

/// The command, one of whose programs gets SIGKILL right after the first step that `wanted` accepts.
#[track_caller]
pub fn kill_when(
    command: &Command,
    wanted: impl FnMut(&Step) -> bool + Send,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    run(Tracer::new(wanted), command, spawn)
}

/// The command, which makes a container: `seen` is shown each step right after it was made, but for those of the hooks
/// that run in the container.
#[track_caller]
pub fn trace_create(
    command: &Command,
    mut seen: impl FnMut(&Step) + Send,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    let wanted = |step: &Step| {
        seen(step);
        false
    };
    run(Tracer::without_init(wanted), command, spawn)
}

/// In a thread of its own: whoever it traces then is let go by the kernel.
#[track_caller]
fn run<F: FnMut(&Step) -> bool + Send>(
    tracer: Tracer<F>,
    command: &Command,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    let child = || spawn(stopped_before_exec(command));
    let ended = std::thread::scope(|scope| scope.spawn(|| tracer.run(&child())).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What came of calls to a server that was traced.
#[derive(Debug)]
#[must_use]
pub struct ServerOutcome<T> {
    /// What `work` gave.
    pub work: T,
    /// The server came as far as it was to be killed.
    pub killed: bool,
}

/// A server, and `work` that calls it. The server gets SIGKILL right after the first step that `wanted`
/// accepts, and at the latest when `work` is done. After a step of its own the programs that it runs live
/// on, as on a host; after a step of one of these it goes with it, as their container does. `wanted` is
/// shown the steps of its start too.
#[track_caller]
pub fn trace_server<T>(
    command: &Command,
    spawn: impl FnOnce(Command) -> Child + Send,
    wanted: impl FnMut(&Step) -> bool + Send,
    work: impl FnOnce() -> T,
) -> ServerOutcome<T> {
    let (begun, begins) = mpsc::channel();
    std::thread::scope(|scope| {
        let traced = scope.spawn(move || {
            let mut child = spawn(stopped_before_exec(command));
            // Whoever has this can't mean another one that has its number later.
            let server = Pid::from_child(&child);
            let server = pidfd_open(server, PidfdFlags::empty()).expect("pidfd_open");
            let _ = begun.send(server);
            let ended = Tracer::of_server(wanted).run(&child);
            // The tracer has waited for it.
            let _ = child.try_wait();
            ended
        });
        let server = begins.recv().expect("the server");
        let work = catch_unwind(AssertUnwindSafe(work));
        let _ = pidfd_send_signal(server, Signal::KILL);
        let ended = traced.join().unwrap_or_else(|panic| resume_unwind(panic));
        ServerOutcome {
            work: work.unwrap_or_else(|panic| resume_unwind(panic)),
            killed: ended.killed,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_is_written() {
        let step = Step::new("crust-mount-hook publish", "renameat", 12);
        assert_eq!(step.to_string().parse(), Ok(step));
        for bad in ["", "renameat 1", "runcrust renameat", "runcrust renameat x"] {
            assert!(bad.parse::<Step>().is_err(), "{bad}");
        }
    }
}

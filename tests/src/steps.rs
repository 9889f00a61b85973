//! The steps of the product's programs: system calls that change something. A command is traced once to find its steps,
//! and can then be killed right after each of them.
//!
//! ptrace(2) stops a program when a system call returns: the step is done, and nothing after it has begun. The programs
//! need not be built for it.

mod instructions;
mod tracer;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command};
use std::str::FromStr;
use std::sync::mpsc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use self::instructions::count_instructions;
use self::tracer::{Tracer, stopped_before_exec};

/// A successful system call of one of the product's programs that changes something other than the program itself:
/// files, mounts, namespaces, processes or locks. `crust-mount-hook publish renameat 2` is the second `renameat` of
/// that hook.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// The name of the program's file, followed by the hook's subcommand.
    pub program: String,
    /// The name as in syscalls(2).
    pub call: String,
    /// The number among the program's calls of this name, starting at 1.
    pub nth: usize,
}

impl Step {
    /// Makes the `nth` step with this call by a program.
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
            _ => Err(format!(
                "{text:?} does not have the form `PROGRAM CALL NUMBER`"
            )),
        }
    }
}

/// The result of a traced command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct TraceOutcome {
    /// Whether the command exited with 0.
    pub success: bool,
    /// Whether a program reached the step after which it was to be killed.
    pub killed: bool,
}

/// Traces a command and the programs that it runs. Returns their steps in order, and how the command ended.
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

/// Runs a command and sends SIGKILL to the program that makes a step, right after that step.
#[track_caller]
pub fn kill_after(
    command: &Command,
    step: &Step,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    kill_when(command, |made| made == step, spawn)
}

/// Runs a command and sends SIGKILL to the program that makes the first step accepted by `wanted`, right after that
/// step.
#[track_caller]
pub fn kill_when(
    command: &Command,
    wanted: impl FnMut(&Step) -> bool + Send,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> TraceOutcome {
    run(Tracer::new(wanted), command, spawn)
}

/// Traces a command that creates a container. `seen` is called right after each step, except for those of hooks that
/// run in the container.
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

/// Traces in a new thread. When it ends, the kernel releases the processes that are still traced.
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

/// The result of tracing a server.
#[derive(Debug)]
#[must_use]
pub struct ServerOutcome<T> {
    /// The result of `work`.
    pub work: T,
    /// Whether a step was reached after which the server was to be killed.
    pub killed: bool,
}

/// Traces a server while `work` calls it. The server gets SIGKILL right after the first step that `wanted` accepts, or
/// when `work` has ended. After a step of the server, the programs that it runs survive, as on a host. After a step of
/// one of these programs, the program is killed together with the server, as in a container that is killed. `wanted`
/// also gets the steps of the server's start.
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
            // A pidfd can't refer to a later process with the same pid.
            let server = Pid::from_child(&child);
            let server = pidfd_open(server, PidfdFlags::empty()).expect("pidfd_open");
            let _ = begun.send(server);
            let ended = Tracer::of_server(wanted).run(&child);
            // The tracer has already waited for the server.
            let _ = child.try_wait();
            ended
        });
        let server = begins.recv().expect("the server was started");
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

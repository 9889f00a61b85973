//! Counts the instructions of a program until it execs another program. Instructions that the kernel executes for the
//! program are not counted.

use std::process::{Child, Command};

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::tracer::stopped_before_exec;

/// Counts the instructions of a command from its start to its exec. It uses single steps (ptrace(2)) and not a hardware
/// counter, which most virtual machines lack.
#[track_caller]
pub fn count_instructions(
    command: &Command,
    spawn: impl Fn(Command) -> Child + Send + Sync,
) -> u64 {
    // Only the thread that attached to the process may trace it.
    let count = || {
        on_one_processor();
        let mut child = spawn(stopped_before_exec(command));
        let count = single_step(Pid::from_raw(child.id().cast_signed()));
        let _ = child.wait();
        count
    };
    let counted = std::thread::scope(|scope| scope.spawn(count).join());
    counted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Binds this thread and its children to one processor, and lowers their priority. Each step switches between the
/// thread and its child. On two processors, each of which sleeps while the other one works, this takes four times as
/// long. With the usual priority, the kernel's workers on that processor would wait until the end, and so would other
/// tests that detach loop devices.
fn on_one_processor() {
    let all = sched_getaffinity(None).expect("sched_getaffinity");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.expect("a processor"));
    sched_setaffinity(None, &one).expect("sched_setaffinity");
    rustix::process::nice(5).expect("nice");
}

fn single_step(pid: Pid) -> u64 {
    let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("waitpid");
    assert_eq!(stopped, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    let options = Options::PTRACE_O_TRACEEXEC | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).expect("PTRACE_SEIZE");
    kill(pid, Signal::SIGCONT).expect("SIGCONT");
    let (mut instructions, mut execs) = (0, 0);
    loop {
        let mut signal = None;
        match waitpid(pid, Some(WaitPidFlag::__WALL)).expect("waitpid") {
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                execs += 1;
            }
            WaitStatus::PtraceEvent(..) => {}
            WaitStatus::Stopped(_, Signal::SIGTRAP) => instructions += 1,
            WaitStatus::Stopped(_, other) => signal = Some(other),
            ended => panic!("the program ended without an exec: {ended:?}"),
        }
        let continued = match execs {
            // The shell that waits for the tracer.
            0 => ptrace::cont(pid, signal),
            1 => ptrace::step(pid, signal),
            _ => {
                ptrace::detach(pid, None).expect("PTRACE_DETACH");
                return instructions;
            }
        };
        continued.expect("the process is stopped");
    }
}

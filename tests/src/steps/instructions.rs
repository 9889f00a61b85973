//! How many instructions a program takes until it becomes another one. What the kernel does for it isn't
//! among them.

use std::process::{Child, Command};

use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::tracer::stopped_before_exec;

/// Of a command, from its start to its exec. (`ptrace(2)`: by itself, and not by a counter of the processor's, which
/// virtual machines mostly lack.)
#[track_caller]
pub fn instructions(command: &Command, spawn: impl Fn(Command) -> Child + Send + Sync) -> u64 {
    // Whoever is traced is the thread's.
    let count = || {
        on_one_processor();
        let mut child = spawn(stopped_before_exec(command));
        let count = stepped(Pid::from_raw(child.id().cast_signed()));
        let _ = child.wait();
        count
    };
    let counted = std::thread::scope(|scope| scope.spawn(count).join());
    counted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// This thread, and whom it starts. Each step wakes one and then the other: on two processors, which go to sleep
/// meanwhile, that takes four times as long. Less urgent than others: the kernel's own workers of that processor would
/// wait until it is over, and with them whoever detaches a loop device.
fn on_one_processor() {
    let all = sched_getaffinity(None).expect("sched_getaffinity");
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu));
    let mut one = CpuSet::new();
    one.set(first.expect("a processor"));
    sched_setaffinity(None, &one).expect("sched_setaffinity");
    rustix::process::nice(5).expect("nice");
}

fn stepped(pid: Pid) -> u64 {
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
            ended => panic!("it became nothing: {ended:?}"),
        }
        let gone_on = match execs {
            // The shell, which waits to be traced.
            0 => ptrace::cont(pid, signal),
            1 => ptrace::step(pid, signal),
            _ => {
                ptrace::detach(pid, None).expect("PTRACE_DETACH");
                return instructions;
            }
        };
        gone_on.expect("it is stopped");
    }
}

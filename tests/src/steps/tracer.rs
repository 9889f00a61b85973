//! The tracer. It follows every process of a command, and stops the product's programs at each system call.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command};
use std::sync::mpsc;
use std::time::Duration;

use nix::libc;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::{Step, TraceOutcome};
use crate::process;
use crate::system_calls;
use crate::wait::scaled_timeout;

/// The longest time that a traced command may take. Even on a loaded machine it takes less.
const TRACE_TIMEOUT: Duration = Duration::from_secs(60);

const FORKS: [i32; 3] = [
    Event::PTRACE_EVENT_CLONE as i32,
    Event::PTRACE_EVENT_FORK as i32,
    Event::PTRACE_EVENT_VFORK as i32,
];

/// The program that [`Tracer::of_server`] supports.
const SERVER: &str = "crust-csi";

/// Returns a command that stops itself and waits for the tracer before it execs the program.
pub(super) fn stopped_before_exec(command: &Command) -> Command {
    let mut gated = Command::new("/bin/sh");
    gated.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]);
    gated.arg(command.get_program()).args(command.get_args());
    // A Command does not report whether its environment was cleared. The environments of runtimes were cleared.
    let set = command.get_envs();
    let set = set.filter_map(|(key, value)| Some((key, value?)));
    gated.env_clear().envs(set);
    if let Some(directory) = command.get_current_dir() {
        gated.current_dir(directory);
    }
    gated
}

/// A thread that is traced.
#[derive(Debug, Clone, Default)]
struct Tracee {
    /// The product's program that the thread runs; `None` for other programs, whose calls are not traced.
    program: Option<String>,
    /// The call that the thread is in, if it is a step once it succeeds.
    call: Option<&'static str>,
}

/// Traces a command. `wanted` is called right after each step, and returns whether to kill the program.
pub(super) struct Tracer<F> {
    wanted: F,
    tracees: HashMap<Pid, Tracee>,
    /// Children that stopped before the event of their parent.
    early_children: Vec<Pid>,
    counts: HashMap<(String, &'static str), usize>,
    killed: bool,
    /// Whether the container's first process is released when it starts. Its steps are then not seen.
    releases_init: bool,
    /// Whether the command is a server. The programs that it runs are then traced as well.
    is_server: bool,
    server: Option<Pid>,
}

impl<F: FnMut(&Step) -> bool> Tracer<F> {
    pub(super) fn new(wanted: F) -> Self {
        Self {
            wanted,
            tracees: HashMap::new(),
            early_children: Vec::new(),
            counts: HashMap::new(),
            killed: false,
            releases_init: false,
            server: None,
            is_server: false,
        }
    }

    /// Makes a tracer for a create. It does not follow the container's processes, because `runc init` of runc 1.3 sends
    /// itself the real-time signal of glibc's `setxid`, which nix can't pass on.
    pub(super) fn without_init(wanted: F) -> Self {
        Self {
            releases_init: true,
            ..Self::new(wanted)
        }
    }

    /// Makes a tracer for a server. After a step of the server only the server is killed. After a step of a program
    /// that the server runs, the program and the server are killed.
    pub(super) fn of_server(wanted: F) -> Self {
        Self {
            is_server: true,
            ..Self::new(wanted)
        }
    }

    /// Traces until the command itself has ended. Processes that outlive it are traced until this thread ends.
    #[track_caller]
    pub(super) fn run(mut self, child: &Child) -> TraceOutcome {
        let root = Pid::from_raw(child.id().cast_signed());
        let watchdog = Watchdog::start(root);
        self.attach(root);
        let success = loop {
            match wait() {
                WaitStatus::Exited(pid, code) => {
                    self.tracees.remove(&pid);
                    if pid == root {
                        break code == 0;
                    }
                }
                WaitStatus::Signaled(pid, ..) => {
                    self.tracees.remove(&pid);
                    if pid == root {
                        break false;
                    }
                }
                stopped => self.handle_stop(stopped),
            }
        };
        watchdog.stop();
        TraceOutcome {
            success,
            killed: self.killed,
        }
    }

    /// Attaches to a process that [`stopped_before_exec`] has stopped, and continues it.
    fn attach(&mut self, root: Pid) {
        let flags = WaitPidFlag::WUNTRACED;
        let stopped = waitpid(root, Some(flags)).expect("waitpid");
        assert_eq!(stopped, WaitStatus::Stopped(root, Signal::SIGSTOP));
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK;
        ptrace::seize(root, options).expect("PTRACE_SEIZE");
        self.tracees.insert(root, Tracee::default());
        self.server = self.is_server.then_some(root);
        kill(root, Signal::SIGCONT).expect("SIGCONT");
    }

    fn handle_stop(&mut self, status: WaitStatus) {
        let Some(pid) = status.pid() else { return };
        let mut signal = None;
        match status {
            WaitStatus::PtraceSyscall(_) => self.handle_syscall_stop(pid),
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                self.handle_exec(pid);
            }
            WaitStatus::PtraceEvent(_, _, event) if FORKS.contains(&event) => self.handle_fork(pid),
            // The parent's event comes a moment later.
            WaitStatus::PtraceEvent(..) if !self.tracees.contains_key(&pid) && !self.killed => {
                self.early_children.push(pid);
                return;
            }
            WaitStatus::Stopped(_, delivered) => signal = Some(delivered),
            _ => {}
        }
        self.resume(pid, signal);
        if self.killed {
            for child in std::mem::take(&mut self.early_children) {
                self.resume(child, None);
            }
        }
    }

    fn resume(&self, pid: Pid, signal: Option<Signal>) {
        let tracee = self.tracees.get(&pid);
        let is_traced = tracee.is_some_and(|tracee| tracee.program.is_some());
        // The process may have been killed in the meantime.
        let _ = if is_traced && !self.killed {
            ptrace::syscall(pid, signal)
        } else {
            ptrace::cont(pid, signal)
        };
    }

    /// Registers a child, which runs the program of its parent. If the fork was no step, the child's calls are not
    /// steps either.
    fn handle_fork(&mut self, parent: Pid) {
        let Ok(child) = ptrace::getevent(parent) else {
            return;
        };
        let child = Pid::from_raw(i32::try_from(child).expect("a pid"));
        let parent = self.tracees.get(&parent).filter(|it| it.call.is_some());
        let program = parent.and_then(|it| it.program.clone());
        let call = None;
        self.tracees.insert(child, Tracee { program, call });
        if let Some(index) = self.early_children.iter().position(|pid| *pid == child) {
            self.early_children.swap_remove(index);
            self.resume(child, None);
        }
    }

    /// Records an exec as a step of the previous program if that program is traced, or else of the new program.
    fn handle_exec(&mut self, pid: Pid) {
        if self.releases_init && is_init(pid) {
            self.tracees.remove(&pid);
            // The process may have been killed in the meantime.
            let _ = ptrace::detach(pid, None);
            return;
        }
        let now = program_of(pid, self.is_server);
        let tracee = self.tracees.entry(pid).or_default();
        tracee.call = None;
        let before = std::mem::replace(&mut tracee.program, now.clone());
        if let Some(program) = before.or(now) {
            self.record_step(pid, &program, "execve");
        }
    }

    fn handle_syscall_stop(&mut self, pid: Pid) {
        let (Ok(info), Ok(registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else {
            return;
        };
        let tracee = self.tracees.entry(pid).or_default();
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            let (number, arguments) = call_and_arguments(&registers);
            tracee.call =
                system_calls::changing_call(number, arguments, |address| read_word(pid, address));
            return;
        }
        let call = tracee.call.take();
        let program = tracee.program.clone();
        // A call that failed has changed nothing.
        if let (Some(call), Some(program), true) = (call, program, return_value(&registers) >= 0) {
            self.record_step(pid, &program, call);
        }
    }

    fn record_step(&mut self, pid: Pid, program: &str, call: &'static str) {
        if self.killed {
            return;
        }
        let nth = self.counts.entry((program.to_owned(), call)).or_default();
        *nth += 1;
        let step = Step::new(program, call, *nth);
        if (self.wanted)(&step) {
            let is_server = program == SERVER;
            let server = self.server.into_iter();
            // The server is killed first, so that it does not see how its program ends.
            for victim in server.chain((self.server.is_none() || !is_server).then_some(pid)) {
                kill(victim, Signal::SIGKILL).expect("the process is stopped");
            }
            self.killed = true;
        }
    }
}

/// Reads a word of a tracee's memory; `None` if the address is not mapped.
fn read_word(pid: Pid, address: u64) -> Option<u64> {
    let word = ptrace::read(pid, address as ptrace::AddressType).ok()?;
    Some(word.cast_unsigned())
}

/// Waits for this thread's own children and tracees, because other threads wait for theirs.
fn wait() -> WaitStatus {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    waitpid(None, Some(flags)).expect("waitpid")
}

/// Returns the product's program that a process runs, with the subcommand of the hook. With `all` it returns the names
/// of other programs as well.
fn program_of(pid: Pid, all: bool) -> Option<String> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.as_bytes();
    for name_prefix in ["runcrust", SERVER] {
        if name.starts_with(name_prefix.as_bytes()) {
            return Some(name_prefix.to_owned());
        }
    }
    if name != b"crust-mount-hook" {
        return all.then(|| String::from_utf8_lossy(name).into_owned());
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let verb = line.split(|byte| *byte == 0).nth(1).unwrap_or_default();
    let verb = String::from_utf8_lossy(verb);
    Some(format!("crust-mount-hook {verb}"))
}

/// Returns whether a process was started as `runc init`. crun has no such exec.
fn is_init(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"init")
}

#[cfg(target_arch = "x86_64")]
fn call_and_arguments(registers: &libc::user_regs_struct) -> (u64, [u64; 3]) {
    let arguments = [registers.rdi, registers.rsi, registers.rdx];
    (registers.orig_rax, arguments)
}

#[cfg(target_arch = "x86_64")]
fn return_value(registers: &libc::user_regs_struct) -> i64 {
    registers.rax.cast_signed()
}

#[cfg(target_arch = "aarch64")]
fn call_and_arguments(registers: &libc::user_regs_struct) -> (u64, [u64; 3]) {
    let [first, second, third, ..] = registers.regs;
    (registers.regs[8], [first, second, third])
}

#[cfg(target_arch = "aarch64")]
fn return_value(registers: &libc::user_regs_struct) -> i64 {
    registers.regs[0].cast_signed()
}

/// Kills a command that hangs, and reports what its processes wait for.
struct Watchdog(mpsc::Sender<()>, std::thread::JoinHandle<Option<String>>);

impl Watchdog {
    fn start(root: Pid) -> Self {
        let (ended, wait) = mpsc::channel();
        let watch = move || {
            let timed_out = Err(mpsc::RecvTimeoutError::Timeout);
            (wait.recv_timeout(scaled_timeout(TRACE_TIMEOUT)) == timed_out).then(|| {
                let hang = process::tree(root.as_raw()).join("\n");
                let _ = kill(root, Signal::SIGKILL);
                hang
            })
        };
        Self(ended, std::thread::spawn(watch))
    }

    #[track_caller]
    fn stop(self) {
        let _ = self.0.send(());
        let hang = self.1.join().expect("the watchdog does not panic");
        if let Some(hang) = hang {
            panic!("a traced command does not end:\n{hang}");
        }
    }
}

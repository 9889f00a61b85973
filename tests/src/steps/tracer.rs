//! The tracing itself: every process of a command is followed, and those of our programs stop at
//! each of their system calls.

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

/// Longer than a traced command takes on a loaded machine.
const TRACE_TIMEOUT: Duration = Duration::from_secs(60);

const FORKS: [i32; 3] = [
    Event::PTRACE_EVENT_CLONE as i32,
    Event::PTRACE_EVENT_FORK as i32,
    Event::PTRACE_EVENT_VFORK as i32,
];

/// The one that [`Tracer::of_server`] knows.
const SERVER: &str = "crust-csi";

/// The command, which waits to be traced before it begins.
pub(super) fn stopped_before_exec(command: &Command) -> Command {
    let mut gated = Command::new("/bin/sh");
    gated.args(["-c", "kill -STOP $$; exec \"$@\"", "sh"]);
    gated.arg(command.get_program()).args(command.get_args());
    // Of a command it can't be told that it has no other environment; those of runtimes haven't.
    let set = command.get_envs();
    let set = set.filter_map(|(key, value)| Some((key, value?)));
    gated.env_clear().envs(set);
    if let Some(directory) = command.get_current_dir() {
        gated.current_dir(directory);
    }
    gated
}

/// A thread that is followed.
#[derive(Debug, Clone, Default)]
struct Tracee {
    /// Which of our programs it runs; the calls of others aren't looked at.
    program: Option<String>,
    /// The call that it is in, where that will be a step if it works.
    call: Option<&'static str>,
}

/// Follows a command. `wanted` is shown each step right after it was made, and says whether its
/// program is to be killed now.
pub(super) struct Tracer<F> {
    wanted: F,
    tracees: HashMap<Pid, Tracee>,
    /// Children that have stopped before it was known whose they are.
    held: Vec<Pid>,
    made: HashMap<(String, &'static str), usize>,
    killed: bool,
    /// The container's first process is let go as it begins, and what it runs isn't seen.
    lets_init_go: bool,
    /// It is a server: what it runs is looked at as well.
    is_server: bool,
    server: Option<Pid>,
}

impl<F: FnMut(&Step) -> bool> Tracer<F> {
    pub(super) fn new(wanted: F) -> Self {
        Self {
            wanted,
            tracees: HashMap::new(),
            held: Vec::new(),
            made: HashMap::new(),
            killed: false,
            lets_init_go: false,
            server: None,
            is_server: false,
        }
    }

    /// Of a command that makes a container, without what happens in that. `runc init` of runc 1.3 sends itself the
    /// signal of glibc's `setxid`, and nix can't hand on a real-time signal.
    pub(super) fn without_init(wanted: F) -> Self {
        Self {
            lets_init_go: true,
            ..Self::new(wanted)
        }
    }

    /// Of a server. Killed after a step of its own, it leaves the programs that it runs behind, as on a
    /// host; after a step of one of these, that one is killed with it, as with their container.
    pub(super) fn of_server(wanted: F) -> Self {
        Self {
            is_server: true,
            ..Self::new(wanted)
        }
    }

    /// Until the command itself has ended. Who lives on is traced until this thread ends.
    #[track_caller]
    pub(super) fn run(mut self, child: &Child) -> TraceOutcome {
        let root = Pid::from_raw(child.id().cast_signed());
        let watchdog = Watchdog::over(root);
        self.begin(root);
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
                stopped => self.stopped(stopped),
            }
        };
        watchdog.stop();
        TraceOutcome {
            success,
            killed: self.killed,
        }
    }

    /// Seizes what [`stopped_before_exec`] has stopped, and lets it go on.
    fn begin(&mut self, root: Pid) {
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

    fn stopped(&mut self, status: WaitStatus) {
        let Some(pid) = status.pid() else { return };
        let mut signal = None;
        match status {
            WaitStatus::PtraceSyscall(_) => self.at_a_call(pid),
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                self.has_executed(pid);
            }
            WaitStatus::PtraceEvent(_, _, event) if FORKS.contains(&event) => self.has_forked(pid),
            // Its parent's word for it comes a moment later.
            WaitStatus::PtraceEvent(..) if !self.tracees.contains_key(&pid) && !self.killed => {
                self.held.push(pid);
                return;
            }
            WaitStatus::Stopped(_, delivered) => signal = Some(delivered),
            _ => {}
        }
        self.go_on(pid, signal);
        if self.killed {
            for child in std::mem::take(&mut self.held) {
                self.go_on(child, None);
            }
        }
    }

    fn go_on(&self, pid: Pid, signal: Option<Signal>) {
        let tracee = self.tracees.get(&pid);
        let ours = tracee.is_some_and(|tracee| tracee.program.is_some());
        // It may have been killed meanwhile, by us or by others.
        let _ = if ours && !self.killed {
            ptrace::syscall(pid, signal)
        } else {
            ptrace::cont(pid, signal)
        };
    }

    /// A child goes on with the program that it was forked from; one whose start is no step makes none.
    fn has_forked(&mut self, parent: Pid) {
        let Ok(child) = ptrace::getevent(parent) else {
            return;
        };
        let child = Pid::from_raw(i32::try_from(child).expect("a pid"));
        let parent = self.tracees.get(&parent).filter(|it| it.call.is_some());
        let program = parent.and_then(|it| it.program.clone());
        let call = None;
        self.tracees.insert(child, Tracee { program, call });
        if let Some(held) = self.held.iter().position(|held| *held == child) {
            self.held.swap_remove(held);
            self.go_on(child, None);
        }
    }

    /// A step of the program that was, if it was ours, and else of the one that is.
    fn has_executed(&mut self, pid: Pid) {
        if self.lets_init_go && is_init(pid) {
            self.tracees.remove(&pid);
            // It may have been killed meanwhile.
            let _ = ptrace::detach(pid, None);
            return;
        }
        let now = program_of(pid, self.is_server);
        let tracee = self.tracees.entry(pid).or_default();
        tracee.call = None;
        let before = std::mem::replace(&mut tracee.program, now.clone());
        if let Some(program) = before.or(now) {
            self.made(pid, &program, "execve");
        }
    }

    fn at_a_call(&mut self, pid: Pid) {
        let (Ok(info), Ok(registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else {
            return;
        };
        let tracee = self.tracees.entry(pid).or_default();
        if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
            let (number, arguments) = called(&registers);
            tracee.call = system_calls::changing(number, arguments, |address| word(pid, address));
            return;
        }
        let call = tracee.call.take();
        let program = tracee.program.clone();
        // What failed has changed nothing.
        if let (Some(call), Some(program), true) = (call, program, returned(&registers) >= 0) {
            self.made(pid, &program, call);
        }
    }

    fn made(&mut self, pid: Pid, program: &str, call: &'static str) {
        if self.killed {
            return;
        }
        let nth = self.made.entry((program.to_owned(), call)).or_default();
        *nth += 1;
        let step = Step::new(program, call, *nth);
        if (self.wanted)(&step) {
            let own = program == SERVER;
            let server = self.server.into_iter();
            // The server first: it isn't to see how its program ends.
            for victim in server.chain((self.server.is_none() || !own).then_some(pid)) {
                kill(victim, Signal::SIGKILL).expect("it is stopped");
            }
            self.killed = true;
        }
    }
}

/// What stands at an address of a tracee's; `None` where nothing does.
fn word(pid: Pid, address: u64) -> Option<u64> {
    let word = ptrace::read(pid, address as ptrace::AddressType).ok()?;
    Some(word.cast_unsigned())
}

/// Of this thread's children and tracees alone: other threads wait for theirs.
fn wait() -> WaitStatus {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    waitpid(None, Some(flags)).expect("waitpid")
}

/// Which of our programs a process runs, and for the hook what it was called for; others have their
/// name where `all` are asked for.
fn program_of(pid: Pid, all: bool) -> Option<String> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.as_bytes();
    for ours in ["runcrust", SERVER] {
        if name.starts_with(ours.as_bytes()) {
            return Some(ours.to_owned());
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

/// Whether a process has begun as `runc init`; crun executes nothing there.
fn is_init(pid: Pid) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"init")
}

#[cfg(target_arch = "x86_64")]
fn called(registers: &libc::user_regs_struct) -> (u64, [u64; 3]) {
    let arguments = [registers.rdi, registers.rsi, registers.rdx];
    (registers.orig_rax, arguments)
}

#[cfg(target_arch = "x86_64")]
fn returned(registers: &libc::user_regs_struct) -> i64 {
    registers.rax.cast_signed()
}

#[cfg(target_arch = "aarch64")]
fn called(registers: &libc::user_regs_struct) -> (u64, [u64; 3]) {
    let [first, second, third, ..] = registers.regs;
    (registers.regs[8], [first, second, third])
}

#[cfg(target_arch = "aarch64")]
fn returned(registers: &libc::user_regs_struct) -> i64 {
    registers.regs[0].cast_signed()
}

/// Ends a command that hangs, after it has said where.
struct Watchdog(mpsc::Sender<()>, std::thread::JoinHandle<Option<String>>);

impl Watchdog {
    fn over(root: Pid) -> Self {
        let (ended, wait) = mpsc::channel();
        let watch = move || {
            let late = Err(mpsc::RecvTimeoutError::Timeout);
            (wait.recv_timeout(scaled_timeout(TRACE_TIMEOUT)) == late).then(|| {
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
        let hang = self.1.join().expect("it only waits");
        if let Some(hang) = hang {
            panic!("a traced command doesn't end:\n{hang}");
        }
    }
}

//! Commands that are killed, held up, or told an error, at a system call of theirs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::node::PATIENCE;
use crate::{Container, wait_until};

/// The command, and SIGKILL for whichever of its processes enters `call` for the `nth` time, before
/// the kernel does it.
pub fn killed_at(command: &Command, call: &str, nth: usize) -> Command {
    injected(command, &["-f"], call, &format!("signal=KILL:when={nth}"))
}

/// The command, whose own process waits before its first `call`.
pub fn held_up_at(command: &Command, call: &str, time: Duration) -> Command {
    let fault = format!("delay_enter={}:when=1", time.as_micros());
    injected(command, &[], call, &fault)
}

/// The command, whose own failed calls of this kind are written to a file as they happen.
pub fn telling_failures_of(command: &Command, call: &str, file: &Path) -> Command {
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-qq", "-Z", "-o"]).arg(file);
    strace.arg("-e").arg(format!("trace={call}"));
    run_in_it(strace, command)
}

fn injected(command: &Command, options: &[&str], call: &str, fault: &str) -> Command {
    let mut strace = Command::new("/usr/bin/strace");
    strace
        .args(options)
        .args(["-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .arg("-e")
        .arg(format!("inject={call}:{fault}"));
    run_in_it(strace, command)
}

fn run_in_it(mut strace: Command, command: &Command) -> Command {
    strace.arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    strace
}

/// Creates a container, which is killed as by [`killed_at`]. Whether it came to be all the same,
/// because no process of it gets that far.
///
/// # Panics
///
/// When neither happens for long.
pub fn create_killed_at(container: &Container, call: &str, nth: usize) -> bool {
    create_under(killed_at(&container.create_command(), call, nth), container)
}

/// Creates a container, with `error` for the `nth` `call` of each of its processes. Whether it came
/// to be.
///
/// # Panics
///
/// When neither happens for long.
pub fn create_failing_at(container: &Container, call: &str, error: &str, nth: usize) -> bool {
    let fault = format!("error={error}:when={nth}");
    let create = container.create_command();
    create_under(injected(&create, &["-f"], call, &fault), container)
}

/// Creates a container; the calls of all its processes, a line each that begins with the pid.
///
/// # Panics
///
/// When it isn't created.
pub fn create_traced(container: &Container, call: &str) -> String {
    let file = container.bundle().join("strace");
    let mut strace = Command::new("/usr/bin/strace");
    strace.args(["-f", "-qq", "-o"]).arg(&file);
    strace.arg("-e").arg(format!("trace={call}"));
    let strace = run_in_it(strace, &container.create_command());
    assert!(create_under(strace, container), "it isn't created");
    std::fs::read_to_string(file).expect("strace has written")
}

/// Creates a container by a command under strace that follows children. Whether it came to be.
fn create_under(strace: Command, container: &Container) -> bool {
    let mut strace = container.spawn(strace);
    let mut created = false;
    wait_until("a create to end, one way or the other", PATIENCE, || {
        // strace lives on with what was created.
        created = container.is_alive();
        created || strace.try_wait().expect("waitpid").is_some()
    });
    if created {
        // The kernel lets go of those whom it traces; asked to, strace itself can wait for ever for
        // one that waits in turn.
        strace.kill().expect("strace is there");
        strace.wait().expect("waitpid");
        wait_until("the delegate to be done", PATIENCE, || {
            container.status().as_deref() == Some("created")
        });
    }
    created
}

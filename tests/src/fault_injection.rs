//! Commands that strace(1) delays, or whose system calls it makes fail. [`crate::steps`] kills commands.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::node::{WAIT_TIMEOUT, utf8};
use crate::wait::holds_within;
use crate::{Container, process, wait_until};

/// Returns the command under strace: its main process is delayed before its first `call`.
pub fn delay_at(command: &Command, call: &str, time: Duration) -> Command {
    let fault = format!("delay_enter={}:when=1", time.as_micros());
    injected(command, &[], call, &fault)
}

/// Returns the command under strace: each of its processes is delayed before its first `call`.
pub fn delay_all_at(command: &Command, call: &str, time: Duration) -> Command {
    let fault = format!("delay_enter={}:when=1", time.as_micros());
    injected(command, &["-f"], call, &fault)
}

/// Returns the command under strace: the calls of its main process are written to a file as they return.
pub fn traced(command: &Command, call: &str, file: &Path) -> Command {
    under_strace(command, &["-o", utf8(file), "-e", &format!("trace={call}")])
}

fn injected(command: &Command, options: &[&str], call: &str, fault: &str) -> Command {
    let trace = format!("trace={call}");
    let inject = format!("inject={call}:{fault}");
    let faults = ["-o", "/dev/null", "-e", &trace, "-e", &inject];
    under_strace(command, &[options, &faults].concat())
}

fn under_strace(command: &Command, options: &[&str]) -> Command {
    let mut strace = Command::new("/usr/bin/strace");
    strace
        .arg("-qq")
        .args(options)
        .arg(command.get_program())
        .args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        strace.current_dir(directory);
    }
    strace
}

/// Creates a container while the `nth` `call` of each of its processes fails with `error`. Returns whether it was
/// created.
pub fn create_with_error(container: &Container, call: &str, error: &str, nth: usize) -> bool {
    let fault = format!("error={error}:when={nth}");
    let create = container.create_command();
    create_under(injected(&create, &["-f"], call, &fault), container)
}

/// Creates a container, and returns the calls of all its processes, with one line for each, which begins with the pid.
pub fn create_traced(container: &Container, call: &str) -> String {
    traced_with(container, &["-e", &format!("trace={call}")])
}

/// Creates a container as [`create_traced`] does, while each process is delayed after each `held` call. These calls are
/// in the output as well.
pub fn create_traced_delayed(
    container: &Container,
    call: &str,
    held: &str,
    time: Duration,
) -> String {
    let trace = format!("trace={call},{held}");
    let wait = format!("inject={held}:delay_exit={}", time.as_micros());
    traced_with(container, &["-e", &trace, "-e", &wait])
}

fn traced_with(container: &Container, options: &[&str]) -> String {
    let file = container.bundle().join("strace");
    let options = [&["-f", "-o", utf8(&file)], options].concat();
    let strace = under_strace(&container.create_command(), &options);
    assert!(
        create_under(strace, container),
        "the container was not created"
    );
    std::fs::read_to_string(file).expect("strace has written")
}

/// Runs a create under an strace that follows children, and returns whether the container was created.
fn create_under(strace: Command, container: &Container) -> bool {
    let mut strace = container.spawn(strace);
    let mut created = false;
    let ends = holds_within(WAIT_TIMEOUT, || {
        // strace lives as long as the container.
        created = container.is_alive();
        created || strace.try_wait().expect("waitpid").is_some()
    });
    if !ends {
        let hang = process::tree(strace.id().cast_signed());
        let _ = strace.kill();
        panic!("a create does not end:\n{}", hang.join("\n"));
    }
    if created {
        // SIGKILL, so that the kernel releases the traced processes. On SIGTERM strace can wait forever for a tracee
        // that is itself waiting.
        strace.kill().expect("strace is running");
        strace.wait().expect("waitpid");
        wait_until("the delegate to finish", WAIT_TIMEOUT, || {
            container.status().as_deref() == Some("created")
        });
    }
    created
}

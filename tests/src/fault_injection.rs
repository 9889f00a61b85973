//! Commands that are held up, or told an error, at a system call of theirs. [`crate::steps`] kills them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::node::{WAIT_TIMEOUT, utf8};
use crate::wait::holds_within;
use crate::{Container, process, wait_until};

/// The command, whose own process waits before its first `call`.
pub fn delay_at(command: &Command, call: &str, time: Duration) -> Command {
    let fault = format!("delay_enter={}:when=1", time.as_micros());
    injected(command, &[], call, &fault)
}

/// The command, each of whose processes waits before its first `call`.
pub fn delay_all_at(command: &Command, call: &str, time: Duration) -> Command {
    let fault = format!("delay_enter={}:when=1", time.as_micros());
    injected(command, &["-f"], call, &fault)
}

/// The command, whose own process's calls are written to a file, each as soon as it returns.
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

/// Creates a container, with `error` for the `nth` `call` of each of its processes. Whether it came
/// to be.
pub fn create_with_error(container: &Container, call: &str, error: &str, nth: usize) -> bool {
    let fault = format!("error={error}:when={nth}");
    let create = container.create_command();
    create_under(injected(&create, &["-f"], call, &fault), container)
}

/// Creates a container; the calls of all its processes, a line each that begins with the pid.
pub fn create_traced(container: &Container, call: &str) -> String {
    traced_with(container, &["-e", &format!("trace={call}")])
}

/// The same, where each of its processes waits after each `held`, of which the calls are told as well.
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
    assert!(create_under(strace, container), "it isn't created");
    std::fs::read_to_string(file).expect("strace has written")
}

/// Creates a container by a command under strace that follows children. Whether it came to be.
fn create_under(strace: Command, container: &Container) -> bool {
    let mut strace = container.spawn(strace);
    let mut created = false;
    let ends = holds_within(WAIT_TIMEOUT, || {
        // strace lives on with what was created.
        created = container.is_alive();
        created || strace.try_wait().expect("waitpid").is_some()
    });
    if !ends {
        let hang = process::tree(strace.id().cast_signed());
        let _ = strace.kill();
        panic!("a create doesn't end:\n{}", hang.join("\n"));
    }
    if created {
        // The kernel lets go of those whom it traces; asked to, strace itself can wait for ever for
        // one that waits in turn.
        strace.kill().expect("strace is there");
        strace.wait().expect("waitpid");
        wait_until("the delegate to be done", WAIT_TIMEOUT, || {
            container.status().as_deref() == Some("created")
        });
    }
    created
}

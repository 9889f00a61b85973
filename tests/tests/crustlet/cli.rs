//! The command line, with a running agent. The delegate makes no difference here, so all tests run with runc.

mod admit;
mod background;
mod delete;
mod events;
mod exec;
mod get;
mod logs;
mod refused;
mod run;

use std::fs;
use std::process::Command;
use std::time::Duration;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Run, holds_within};

use crate::scene::Scene;

/// The timeout of a command. It is longer than any of these commands takes.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(40);

fn scene() -> Scene {
    Scene::new(Delegate::Runc)
}

/// Writes an input file for a command, and returns its path.
fn write_file(scene: &Scene, name: &str, text: &str) -> String {
    let path = scene.node.dir().join(name);
    fs::write(&path, text).unwrap();
    utf8(&path).to_owned()
}

/// Runs a command with `text` as its standard input.
#[track_caller]
fn with_input(scene: &Scene, arguments: &[&str], text: &str) -> Run {
    let input = write_file(scene, "input", text);
    let client = scene.crustlet.client(arguments);
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "input=$1; shift; exec \"$@\" < \"$input\"",
        "sh",
        &input,
    ]);
    command.arg(client.get_program()).args(client.get_args());
    Run::capture_within(&mut command, COMMAND_TIMEOUT).expect("the command ends")
}

/// Runs a command that fails, and returns its error message without the line end.
#[track_caller]
fn failure_message(scene: &Scene, arguments: &[&str]) -> String {
    let run = scene.crustlet.cli(arguments).failure();
    assert_eq!(run.status.code(), Some(1), "{run}");
    let message = run
        .stderr
        .strip_suffix('\n')
        .and_then(|it| it.strip_prefix("crustlet: "));
    message.unwrap_or_else(|| panic!("{run}")).to_owned()
}

/// Waits until a command prints exactly `expected`.
#[track_caller]
fn wait_output(scene: &Scene, arguments: &[&str], expected: &str) {
    let mut last = String::new();
    let matches = holds_within(COMMAND_TIMEOUT, || {
        last = scene.crustlet.cli(arguments).stdout;
        last == expected
    });
    assert!(matches, "{arguments:?}: {last}");
}

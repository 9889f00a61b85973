//! The command line, against an agent that runs. Whose containers they are doesn't matter here.

mod admit;
mod delete;
mod events;
mod exec;
mod get;
mod going;
mod logs;
mod refused;
mod run;

use std::fs;
use std::process::Command;
use std::time::Duration;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Run, holds_within};

use crate::scene::Scene;

/// Longer than any of these commands takes.
const PATIENCE: Duration = Duration::from_secs(40);

fn scene() -> Scene {
    Scene::new(Delegate::Runc)
}

/// A file for a command.
fn file(scene: &Scene, name: &str, text: &str) -> String {
    let path = scene.node.dir().join(name);
    fs::write(&path, text).unwrap();
    utf8(&path).to_owned()
}

/// A command that is given a text on its standard input.
#[track_caller]
fn with_input(scene: &Scene, arguments: &[&str], text: &str) -> Run {
    let input = file(scene, "input", text);
    let client = scene.crustlet.client(arguments);
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "input=$1; shift; exec \"$@\" < \"$input\"",
        "sh",
        &input,
    ]);
    command.arg(client.get_program()).args(client.get_args());
    Run::within(&mut command, PATIENCE).expect("it ends")
}

/// What a command says that fails, without the line's end.
#[track_caller]
fn complaint(scene: &Scene, arguments: &[&str]) -> String {
    let run = scene.crustlet.cli(arguments).failure();
    assert_eq!(run.status.code(), Some(1), "{run}");
    let told = run
        .stderr
        .strip_suffix('\n')
        .and_then(|it| it.strip_prefix("crustlet: "));
    told.unwrap_or_else(|| panic!("{run}")).to_owned()
}

/// Waits until a command's output is as it should be.
#[track_caller]
fn wait_output(scene: &Scene, arguments: &[&str], expected: &str) {
    let mut last = String::new();
    let is_so = holds_within(PATIENCE, || {
        last = scene.crustlet.cli(arguments).stdout;
        last == expected
    });
    assert!(is_so, "{arguments:?}: {last}");
}

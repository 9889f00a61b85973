//! The system calls of a program and its threads, as strace(1) writes them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A command under strace, which writes to a file.
pub fn traced(command: &Command, options: &[&str], file: &Path) -> Command {
    let mut traced = Command::new("/usr/bin/strace");
    traced.args(["-f", "-qq"]).args(options);
    traced.arg("-o").arg(file).arg("--");
    traced.arg(command.get_program()).args(command.get_args());
    traced
}

/// A line for each call. (One during which another thread made one has a second line, with its end.)
///
/// # Panics
///
/// When there is no trace.
pub fn calls(file: &Path) -> Vec<String> {
    let text = fs::read(file).expect("strace has written");
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().filter(|line| !line.contains(" resumed>"));
    calls.map(str::to_owned).collect()
}

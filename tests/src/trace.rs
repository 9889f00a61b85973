//! Traces of a program and its threads, as strace(1) writes them.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Returns the command under strace, which writes to `file`.
pub fn traced(command: &Command, options: &[&str], file: &Path) -> Command {
    let mut traced = Command::new("/usr/bin/strace");
    traced.args(["-f", "-qq"]).args(options);
    traced.arg("-o").arg(file).arg("--");
    traced.arg(command.get_program()).args(command.get_args());
    traced
}

/// Returns one line for each call. The second line of a call that was interrupted by another thread's is left out.
pub fn calls(file: &Path) -> Vec<String> {
    let text = fs::read(file).expect("strace has written");
    let text = String::from_utf8_lossy(&text);
    let calls = text.lines().filter(|line| !line.contains(" resumed>"));
    calls.map(str::to_owned).collect()
}

/// Returns whether a path in the call has a component of 64 hexadecimal digits, as entries of the crust directory do.
pub fn names_an_entry(call: &str) -> bool {
    let is_digest = |part: &str| part.len() == 64 && part.bytes().all(|it| it.is_ascii_hexdigit());
    let path = call.split('"').skip(1).step_by(2);
    let is_path = |text: &&str| text.len() < 4096;
    path.filter(is_path)
        .flat_map(|path| path.split('/'))
        .any(is_digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_recognised_by_its_digest() {
        let digest = "0123456789abcdef".repeat(4);
        let call = |path: &str| format!("7 newfstatat(5, \"{path}\", 0x7ffe, 0) = -1 ENOENT");
        assert!(names_an_entry(&call(&digest)));
        assert!(names_an_entry(&call(&format!(
            "/run/crust/{digest}/mountInfo.json"
        ))));
        assert!(!names_an_entry(&call(&digest[1..])));
        assert!(!names_an_entry(&call("/run/crust")));
    }
}

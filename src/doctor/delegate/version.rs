//! What a runtime says that it is.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crust_state::Deadline;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};

/// For an answer that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(3);

/// More is no version.
const MOST: u64 = 4096;

/// The answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Its name, and its version.
    Version(String, String),
    /// There is none, and why.
    Nothing(String),
}

/// Asks a program, which is waited for only so long.
pub(super) fn ask(program: &Path) -> Said {
    match run(program) {
        Ok((status, text)) if status.success() => read(&text),
        Ok((status, _)) => Said::Nothing(status.to_string()),
        Err(error) => Said::Nothing(error.to_string()),
    }
}

/// `runc version 1.1.5+ds1`: the form that go-runc reads, too.
fn read(text: &str) -> Said {
    let mut words = text.split_ascii_whitespace();
    if let (Some(name), Some("version" | "version:"), Some(version)) =
        (words.next(), words.next(), words.next())
    {
        return Said::Version(name.to_owned(), version.to_owned());
    }
    let line = text.lines().next().unwrap_or_default();
    Said::Nothing(format!("answers {line:?}"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "an operator's command: no caller's descriptors or signals are lost by a fork"
)]
fn run(program: &Path) -> std::io::Result<(ExitStatus, String)> {
    // A pipe would be held open by what the program leaves.
    let mut output = File::from(memfd_create("version", MemfdFlags::CLOEXEC)?);
    let mut command = Command::new(program);
    command.arg("--version").env_clear().current_dir("/");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(output.try_clone()?);
    let mut child = Group(command.process_group(0).spawn()?);
    let ended = Deadline::after(PATIENCE).poll(|| child.0.try_wait())?;
    let Some(status) = ended else {
        let seconds = PATIENCE.as_secs();
        return Err(std::io::Error::other(format!(
            "no answer in {seconds} seconds"
        )));
    };
    let mut text = Vec::new();
    output.rewind()?;
    output.take(MOST).read_to_end(&mut text)?;
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}

/// A program and what it has started, which end with this.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_version() {
        let version = |name: &str, version: &str| Said::Version(name.into(), version.into());
        for (text, expected) in [
            (
                "runc version 1.1.5+ds1\ncommit: 1\n",
                version("runc", "1.1.5+ds1"),
            ),
            ("crun version 1.8.1\n", version("crun", "1.8.1")),
            ("youki version: 0.5.0\n", version("youki", "0.5.0")),
            ("", Said::Nothing("answers \"\"".into())),
            ("hello\nworld", Said::Nothing("answers \"hello\"".into())),
        ] {
            assert_eq!(read(text), expected);
        }
    }

    #[test]
    fn a_program_that_fails_says_nothing() {
        let no_program = ask(Path::new("/no/such/program"));
        assert!(matches!(no_program, Said::Nothing(_)), "{no_program:?}");
        let fails = ask(Path::new("/bin/false"));
        assert!(matches!(fails, Said::Nothing(why) if why.contains('1')));
    }
}

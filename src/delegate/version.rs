//! Queries a runtime's name and version.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::sys;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, chdir, chroot, kill_process_group};

/// Longest time to wait for `--version`, which usually takes milliseconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);

/// Largest part of the output that is read.
const MAX_OUTPUT_BYTES: u64 = 4096;

/// The result of running a program with `--version`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum VersionReply {
    /// The name and the version.
    Version(String, String),
    /// The output has no name and version, or the program didn't exit within three seconds. The text says which.
    Unrecognized(String),
    /// The program couldn't be executed, or failed. The text says why.
    NotRun(String),
}

/// Runs a program with `--version`. Blocks for three seconds at most.
pub(crate) fn query_version(program: &Path) -> VersionReply {
    query_version_in(Path::new("/"), program)
}

/// Runs a program with `--version` and `root` as its root directory. `program` is a path in `root`.
pub(crate) fn query_version_in(root: &Path, program: &Path) -> VersionReply {
    match run(root, program) {
        Ok((status, text)) if status.success() => parse(&text),
        // For example, the dynamic loader doesn't find a library.
        Ok((status, _)) => VersionReply::NotRun(status.to_string()),
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            VersionReply::Unrecognized(error.to_string())
        }
        Err(error) => VersionReply::NotRun(error.to_string()),
    }
}

/// Checks that the kernel can execute a program. Fails if the program is empty or for another architecture, or if its
/// interpreter is missing.
pub(crate) fn check_executes(program: &Path) -> io::Result<()> {
    spawn(program, &[], null()?, null()?).map(drop)
}

/// Parses a first line such as `runc version 1.1.5+ds1`, which go-runc parses as well.
fn parse(text: &str) -> VersionReply {
    let mut words = text.split_ascii_whitespace();
    if let (Some(name), Some("version" | "version:"), Some(version)) =
        (words.next(), words.next(), words.next())
    {
        return VersionReply::Version(name.to_owned(), version.to_owned());
    }
    let line = text.lines().next().unwrap_or_default();
    VersionReply::Unrecognized(format!("prints {line:?}"))
}

fn run(root: &Path, program: &Path) -> io::Result<(ExitStatus, String)> {
    // Not a pipe: a process that outlives the program would keep it open.
    let mut output = File::from(memfd_create("version", MemfdFlags::CLOEXEC)?);
    // Opened before chroot: the other root directory may have no /dev/null.
    let (null, stdout) = (null()?, output.try_clone()?);
    let mut child = in_root(root, || spawn(program, &["--version"], null, stdout))?;
    let ended = Deadline::after(VERSION_TIMEOUT).poll(|| child.0.try_wait())?;
    let Some(status) = ended else {
        let seconds = VERSION_TIMEOUT.as_secs();
        return Err(io::Error::new(
            ErrorKind::TimedOut,
            format!("still running after {seconds} seconds"),
        ));
    };
    let mut text = Vec::new();
    output.rewind()?;
    output.take(MAX_OUTPUT_BYTES).read_to_end(&mut text)?;
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}

fn null() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}

/// Calls `act` with `root` as the root directory, in a thread that doesn't share its root directory with others.
fn in_root<T: Send>(root: &Path, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    if root == Path::new("/") {
        return act();
    }
    let enter = || {
        let entered = sys::unshare_fs()
            .and_then(|()| chroot(root))
            .and_then(|()| chdir("/"));
        entered.map_err(|errno| io::Error::other(format!("chroot {}: {errno}", root.display())))?;
        act()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, enter)?;
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "only commands of an operator call this: no descriptors or signals of a caller can be lost by a fork"
)]
fn spawn(program: &Path, arguments: &[&str], null: File, stdout: File) -> io::Result<ProcessGroup> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().current_dir("/");
    command.stdin(null.try_clone()?).stdout(stdout).stderr(null);
    Ok(ProcessGroup(command.process_group(0).spawn()?))
}

/// A program in its own process group. Dropping it kills the group.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
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
    fn the_version_is_parsed_from_the_first_line() {
        let version =
            |name: &str, version: &str| VersionReply::Version(name.into(), version.into());
        for (text, expected) in [
            (
                "runc version 1.1.5+ds1\ncommit: 1\n",
                version("runc", "1.1.5+ds1"),
            ),
            ("crun version 1.8.1\n", version("crun", "1.8.1")),
            ("youki version: 0.5.0\n", version("youki", "0.5.0")),
            ("", VersionReply::Unrecognized("prints \"\"".into())),
            (
                "hello\nworld",
                VersionReply::Unrecognized("prints \"hello\"".into()),
            ),
        ] {
            assert_eq!(parse(text), expected);
        }
    }

    #[test]
    fn a_missing_or_failing_program_is_reported_as_not_run() {
        let no_program = query_version(Path::new("/no/such/program"));
        assert!(
            matches!(no_program, VersionReply::NotRun(_)),
            "{no_program:?}"
        );
        let fails = query_version(Path::new("/bin/false"));
        assert!(matches!(fails, VersionReply::NotRun(reason) if reason.contains('1')));
    }
}

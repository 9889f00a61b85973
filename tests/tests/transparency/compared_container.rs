//! One of two containers that are called in the same way, and its answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use runcrust_tests::{Bundle, Container, Runtime, TestDir};
use serde_json::{Map, Value};

/// The result of a call. Numbers are masked, and with them times and the names of the two containers.
#[derive(Debug, PartialEq)]
#[must_use]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The lines that the call has added to the log, sorted, because the container's init writes there, too.
    pub(crate) log: Vec<String>,
    /// Whether there is a pid file.
    pid_file: bool,
}

impl Answer {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!(self.status.success(), "should have worked: {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn failure(self) -> Self {
        assert!(!self.status.success(), "should have failed: {self:#?}");
        self
    }

    /// Asserts that nothing was printed or logged.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        let output = (&*self.stdout, &*self.stderr, &*self.log);
        assert_eq!(output, ("", "", &[] as &[String]), "{self:#?}");
        self
    }
}

/// Replaces each run of digits by one `#`, and each run of blanks by one blank.
pub(crate) fn masked(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            _ if letter.is_ascii_digit() && masked.ends_with('#') => {}
            _ if letter.is_ascii_digit() => masked.push('#'),
            ' ' if masked.ends_with(' ') => {}
            letter => masked.push(letter),
        }
    }
    masked
}

/// Returns whether a line of runc's debug log may be missing in another run: a signal with which Go preempts its
/// threads, how long freezing took on a busy machine, and since runc 1.2 the end of a thread, because the process may
/// end first.
fn is_by_chance(line: &str) -> bool {
    [
        "urgent I/O condition",
        "frozen after",
        "mount source thread: closing",
    ]
    .iter()
    .any(|text| line.contains(text))
}

/// Removes the location in runc's source from a line of its debug log: runc 1.3 adds it to some lines by chance.
fn without_origin(line: &str) -> String {
    let Ok(mut entry) = serde_json::from_str::<Map<String, Value>>(line) else {
        return line.to_owned();
    };
    entry.retain(|key, _| key != "file" && key != "func");
    Value::Object(entry).to_string()
}

/// One of the two containers.
pub(crate) struct ComparedContainer {
    pub(crate) container: Container,
    pub(crate) runtime: Runtime,
    pub(crate) bundle: Bundle,
    /// The directory of the files that calls name.
    pub(crate) work: PathBuf,
}

impl ComparedContainer {
    pub(crate) fn new(runtime: &Runtime, bundle: Bundle, dir: &TestDir) -> Self {
        Self {
            container: Container::new(runtime, &bundle),
            runtime: runtime.clone(),
            bundle,
            work: dir.subdir("work"),
        }
    }

    /// Replaces the placeholders `@BUNDLE`, `@NAME` (of the bundle's directory), `@ID`, `@ROOT`, `@LOG`, `@PIDFILE` and
    /// `@WORK` in a word of a call.
    fn word(&self, word: &str) -> String {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        word.replace("@BUNDLE", &path(self.bundle.path()))
            .replace("@NAME", self.bundle.id())
            .replace("@ROOT", &path(self.container.root()))
            .replace("@LOG", &path(&self.container.log_path()))
            .replace("@PIDFILE", &path(&self.pid_file()))
            .replace("@WORK", &path(&self.work))
            .replace("@ID", self.container.id())
    }

    fn pid_file(&self) -> PathBuf {
        self.bundle.path().join("init.pid")
    }

    pub(crate) fn call(&self, call: &Call<'_>) -> Answer {
        let output = |name: &str| {
            let path = self.work.join(name);
            // A file instead of a pipe, because a created container keeps it open.
            let file = File::create(&path).expect("a file for the output");
            (path, Stdio::from(file))
        };
        let (stdout, stderr) = (output("stdout"), output("stderr"));
        let mut command = match call.shell {
            None => self.runtime.command(),
            Some(script) => {
                let mut shell = Command::new("/bin/sh");
                let script = format!("{}\nexec \"$0\" \"$@\"", self.word(script));
                shell.args(["-ec", &script]).arg(self.runtime.program());
                shell.env_clear();
                shell
            }
        };
        command.args(call.line.split_whitespace().map(|word| self.word(word)));
        command.current_dir(match call.directory {
            None => self.bundle.path().to_owned(),
            Some(directory) => self.word(directory).into(),
        });
        let input = self.work.join("stdin");
        fs::write(&input, call.stdin).expect("a file for the input");
        command.stdin(File::open(&input).expect("the input"));
        command.stdout(stdout.1).stderr(stderr.1);
        if call.line.contains("@PIDFILE") {
            // The pid file is removed first, so that a pid file that exists after the call was written by the call.
            let _ = fs::remove_file(self.pid_file());
        }
        let before = self.log().len();
        let status = command.status().expect("a process");
        let log = self.log();
        let lines = log[before..].lines().filter(|line| !is_by_chance(line));
        let mut log: Vec<String> = lines.map(|line| masked(&without_origin(line))).collect();
        log.sort();
        let read = |path| fs::read_to_string(path).expect("an output");
        let stdout = read(stdout.0);
        Answer {
            status,
            stdout: if call.exact { stdout } else { masked(&stdout) },
            stderr: masked(&read(stderr.0)),
            log,
            pid_file: self.pid().is_some(),
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.container.log_path()).unwrap_or_default()
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.pid_file()).ok()?;
        text.trim().parse().ok()
    }
}

/// A call to a runtime.
#[derive(Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    /// The arguments, split at blanks.
    pub(crate) line: &'a str,
    /// The standard input.
    pub(crate) stdin: &'a str,
    /// Whether standard output is compared without a mask.
    pub(crate) exact: bool,
    /// Commands for a shell to run before it execs the runtime.
    pub(crate) shell: Option<&'a str>,
    /// The working directory, if it is not the bundle.
    pub(crate) directory: Option<&'a str>,
}

//! One of two containers that are called alike, and what it answers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use runcrust_tests::{Bundle, Container, Runtime, TestDir};
use serde_json::{Map, Value};

/// What came of a call; numbers, and with them times and the twins' own names, are masked.
#[derive(Debug, PartialEq)]
#[must_use]
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// The lines that the call has added to the log, sorted: a container's init writes there too.
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

    /// Nothing was said by anybody.
    #[track_caller]
    pub(crate) fn silent(self) -> Self {
        let said = (&*self.stdout, &*self.stderr, &*self.log);
        assert_eq!(said, ("", "", &[] as &[String]), "{self:#?}");
        self
    }
}

/// Runs of digits become one `#`, and of blanks one blank.
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

/// A line of runc's debug log that is there or not: a signal with which Go stirs its own threads, how long a busy
/// machine took to freeze, and from 1.2 on the end of a thread, which the process may end before.
fn is_by_chance(line: &str) -> bool {
    [
        "urgent I/O condition",
        "frozen after",
        "mount source thread: closing",
    ]
    .iter()
    .any(|text| line.contains(text))
}

/// A line of runc's debug log without the place in runc's source, which runc 1.3 gives to some lines by chance.
fn without_origin(line: &str) -> String {
    let Ok(mut entry) = serde_json::from_str::<Map<String, Value>>(line) else {
        return line.to_owned();
    };
    entry.retain(|key, _| key != "file" && key != "func");
    Value::Object(entry).to_string()
}

/// One of the two.
pub(crate) struct Twin {
    pub(crate) container: Container,
    pub(crate) runtime: Runtime,
    pub(crate) bundle: Bundle,
    /// Of the files that calls name.
    pub(crate) work: PathBuf,
}

impl Twin {
    pub(crate) fn new(runtime: &Runtime, bundle: Bundle, dir: &TestDir) -> Self {
        Self {
            container: Container::new(runtime, &bundle),
            runtime: runtime.clone(),
            bundle,
            work: dir.subdir("work"),
        }
    }

    /// A word of a call: `@BUNDLE`, `@NAME` (of its directory), `@ID`, `@ROOT`, `@LOG`,
    /// `@PIDFILE`, and `@WORK` for a directory of the twin's own, stand for what the twin has.
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

    pub(crate) fn call(&self, how: &Call<'_>) -> Answer {
        let output = |name: &str| {
            let path = self.work.join(name);
            // A file and not a pipe: a container that was made holds it open.
            let file = File::create(&path).expect("a file for the output");
            (path, Stdio::from(file))
        };
        let (stdout, stderr) = (output("stdout"), output("stderr"));
        let mut command = match how.shell {
            None => self.runtime.command(),
            Some(script) => {
                let mut shell = Command::new("/bin/sh");
                let script = format!("{}\nexec \"$0\" \"$@\"", self.word(script));
                shell.args(["-ec", &script]).arg(self.runtime.program());
                shell.env_clear();
                shell
            }
        };
        command.args(how.line.split_whitespace().map(|word| self.word(word)));
        command.current_dir(match how.directory {
            None => self.bundle.path().to_owned(),
            Some(directory) => self.word(directory).into(),
        });
        let input = self.work.join("stdin");
        fs::write(&input, how.stdin).expect("a file for the input");
        command.stdin(File::open(&input).expect("the input"));
        command.stdout(stdout.1).stderr(stderr.1);
        if how.line.contains("@PIDFILE") {
            // One that is there afterwards is this call's.
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
            stdout: if how.exact { stdout } else { masked(&stdout) },
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

/// How a runtime is called.
#[derive(Clone, Copy, Default)]
pub(crate) struct Call<'a> {
    /// The arguments, split at blanks.
    pub(crate) line: &'a str,
    /// The standard input.
    pub(crate) stdin: &'a str,
    /// The standard output is compared as it is, without a mask.
    pub(crate) exact: bool,
    /// What a shell does first, which then execs the runtime.
    pub(crate) shell: Option<&'a str>,
    /// From where, if not from the bundle.
    pub(crate) directory: Option<&'a str>,
}

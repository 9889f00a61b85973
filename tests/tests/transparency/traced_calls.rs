//! Traces of the system calls that runcrust makes before it execs the delegate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::system_calls::{CallKind, names};

/// Kinds of calls that change something, or what the process passes on. For opens the flags are checked.
const CHANGES: [CallKind; 4] = [
    CallKind::Object,
    CallKind::Write,
    CallKind::RootOrNamespace,
    CallKind::Inherited,
];

/// The strace output of a command.
pub(crate) struct Trace {
    file: PathBuf,
}

/// The system calls of one program in a trace.
#[derive(Debug)]
pub(crate) struct TracedCalls {
    calls: Vec<String>,
    /// When each call was made, in seconds. Empty if the times were not traced.
    times: Vec<f64>,
    /// The exec with which the program ended. If the program did not exec another one, the exec that started it.
    pub(crate) exec: String,
}

impl Trace {
    /// Returns a trace that is written to a file in `directory`.
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self {
            file: directory.join("strace"),
        }
    }

    /// Wraps a command in strace, which does not follow its children, because they outlive it.
    pub(crate) fn wrap(&self, command: &Command) -> Command {
        let mut traced = Command::new("/usr/bin/strace");
        traced
            .args(["-q", "-y", "-s", "4096", "-o"])
            .arg(&self.file);
        traced
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args());
        traced.env_clear();
        for (name, value) in command.get_envs() {
            traced.env(name, value.expect("a command that removes no variable"));
        }
        if let Some(directory) = command.get_current_dir() {
            traced.current_dir(directory);
        }
        traced
    }

    /// Returns the calls between the first and the second exec, and the number of execs. Asserts that the second exec
    /// succeeded.
    #[track_caller]
    pub(crate) fn part(&self) -> (TracedCalls, usize) {
        let text = fs::read(&self.file).expect("the output of strace");
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines = || text.lines();
        let is_exec = |line: &&str| line.starts_with("execve(");
        assert!(lines().next().is_some_and(|line| is_exec(&line)), "{text}");
        let mut rest = lines().skip(1);
        let calls: Vec<String> = rest
            .by_ref()
            .take_while(|line| !is_exec(line))
            .map(str::to_owned)
            .collect();
        let exec = lines()
            .filter(is_exec)
            .nth(1)
            .expect("an exec of the delegate");
        assert!(exec.ends_with(" = 0"), "{exec}");
        let part = TracedCalls {
            calls,
            times: Vec::new(),
            exec: exec.to_owned(),
        };
        (part, lines().filter(is_exec).count())
    }

    /// Returns the number of execs.
    pub(crate) fn execs(&self) -> usize {
        let text = fs::read_to_string(&self.file).expect("the output of strace");
        text.lines()
            .filter(|line| line.starts_with("execve("))
            .count()
    }
}

fn name(call: &str) -> &str {
    call.split_once('(').map_or("", |(name, _)| name)
}

impl TracedCalls {
    /// Returns the calls of a program traced with times (`-ttt`), without those of its children.
    #[track_caller]
    pub(crate) fn of_program(file: &Path) -> Self {
        let lines = runcrust_tests::trace::calls(file);
        let parts = lines.iter().filter_map(|line| {
            let (pid, rest) = line.split_once(' ')?;
            let (time, call) = rest.trim_start().split_once(' ')?;
            Some((pid, time.parse::<f64>().ok()?, call.to_owned()))
        });
        let parts: Vec<_> = parts.collect();
        let first = parts.first().expect("an exec").0;
        let own = parts.iter().filter(|(pid, ..)| *pid == first);
        let (times, mut calls): (Vec<f64>, Vec<String>) =
            own.map(|(_, time, call)| (*time, call.clone())).unzip();
        let exec = calls.remove(0);
        Self {
            calls,
            times: times[1..].to_vec(),
            exec,
        }
    }

    /// Returns the times of the calls that contain a text.
    pub(crate) fn times_of(&self, text: &str) -> Vec<f64> {
        let both = self.calls.iter().zip(&self.times);
        let named = both.filter(|(call, _)| call.contains(text));
        named.map(|(_, time)| *time).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.len()
    }

    /// Returns the calls that contain a text.
    pub(crate) fn containing(&self, text: &str) -> impl Iterator<Item = &String> {
        self.calls.iter().filter(move |call| call.contains(text))
    }

    /// Returns the number of calls that name an entry of the crust directory.
    pub(crate) fn probes(&self) -> usize {
        let names = |call: &&String| runcrust_tests::trace::names_an_entry(call);
        self.calls.iter().filter(names).count()
    }

    /// Returns the number of bytes read from files.
    pub(crate) fn bytes_read(&self) -> usize {
        let reads = self
            .calls
            .iter()
            .filter(|call| matches!(name(call), "read" | "pread64"));
        let counts = reads.filter_map(|call| call.rsplit_once(" = ")?.1.parse::<usize>().ok());
        counts.sum()
    }

    /// Returns the calls that open files.
    pub(crate) fn opens(&self) -> impl Iterator<Item = &str> {
        let opens = ["open", "openat", "openat2"];
        let calls = self.calls.iter().map(String::as_str);
        calls.filter(move |call| opens.contains(&name(call)))
    }

    /// Returns the directories that were listed, each once.
    pub(crate) fn listed(&self) -> Vec<String> {
        let listings = self
            .calls
            .iter()
            .filter(|call| name(call).starts_with("getdents"));
        let mut directories: Vec<String> = listings
            .map(|call| {
                let (_, rest) = call.split_once('<').expect("strace -y names descriptors");
                rest.split_once('>')
                    .expect("strace -y names descriptors")
                    .0
                    .to_owned()
            })
            .collect();
        directories.dedup();
        directories
    }

    /// Returns how often a file was opened, including failed attempts.
    pub(crate) fn opened(&self, file_name: &str) -> usize {
        let ends = [format!("\"{file_name}\""), format!("/{file_name}\"")];
        self.opens()
            .filter(|call| ends.iter().any(|end| call.contains(end)))
            .count()
    }

    /// Returns the calls with an argument at or below a path.
    pub(crate) fn naming_path(&self, path: &Path) -> Vec<&str> {
        let start = format!("\"{}", path.display());
        let calls = self.calls.iter().map(String::as_str);
        // Data that is read may contain the path: runcrust's configuration does.
        calls
            .filter(|call| name(call) != "read" && call.contains(&start))
            .collect()
    }

    /// Asserts that nothing is written, created, locked or started.
    #[track_caller]
    pub(crate) fn assert_changes_nothing(&self) {
        let changes = self
            .calls
            .iter()
            .filter(|call| names(&CHANGES).any(|it| it == name(call)));
        let changes: Vec<&String> = changes.collect();
        assert!(changes.is_empty(), "{changes:#?}");
        let to_write = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_TMPFILE"];
        let writing = self
            .opens()
            .filter(|call| to_write.iter().any(|flag| call.contains(flag)));
        let writing: Vec<&str> = writing.collect();
        assert!(writing.is_empty(), "{writing:#?}");
    }
}

//! Creates that must be refused, and what must hold after a refusal.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::{Bundle, LoopDevice, Node, host};

/// The result of a create that must be refused.
#[derive(Debug)]
#[must_use]
pub struct Refusal {
    /// The last entry of the log; empty if it is not an error.
    pub message: String,
    /// Expectations about a refusal that do not hold.
    pub failures: Vec<String>,
}

impl Refusal {
    /// Expects the message to contain these texts.
    pub fn containing(mut self, wanted: &[&str]) -> Self {
        for text in wanted {
            if !self.message.contains(text) {
                self.failures.push(format!("the message lacks {text:?}"));
            }
        }
        self
    }

    /// Expects the message to name the volume exactly once, because each layer adds only what the others don't know.
    pub fn naming_volume(mut self, name: &str) -> Self {
        let count = self.message.matches(&format!("volume {name}")).count();
        if count != 1 {
            self.failures
                .push(format!("names volume {name} {count} times"));
        }
        self
    }

    /// Returns the message. Panics with all failures if there are any.
    #[track_caller]
    pub fn message(self) -> String {
        assert!(
            self.failures.is_empty(),
            "{:#?} of: {}",
            self.failures,
            self.message
        );
        self.message
    }
}

/// Checks that a message contains each of these words.
#[track_caller]
pub fn assert_contains(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
}

/// Creates a container, which must be refused, and checks that nothing was changed.
pub fn create_refused(node: &Node, bundle: &Bundle) -> Refusal {
    let container = node.container(bundle);
    let (records, config) = (node.records(), bundle.config_bytes());
    let mounts = host::mounts_below(node.dir().path());
    let run = container.create();

    let lines = container.log_lines();
    let errors = lines.iter().filter(|line| line.level == "error").count();
    let last = lines.last().filter(|line| line.level == "error");
    let message = last.map(|line| line.msg.clone()).unwrap_or_default();
    let mut failures = Vec::new();
    let mut expect = |holds: bool, what: String| failures.extend((!holds).then_some(what));
    expect(!run.status.success(), format!("exit {}", run.status));
    expect(errors == 1, format!("{errors} errors in the log {lines:?}"));
    expect(!message.is_empty(), format!("the log ends in {lines:?}"));
    let one_line = message.trim() == message && !message.contains(char::is_control);
    expect(one_line, "the message is not one line".to_owned());
    let stderr = container.stderr();
    // A sandbox's standard error is read-only.
    let parsed: Value = serde_json::from_slice(&config).unwrap_or_default();
    let is_sandbox = parsed["annotations"]["io.kubernetes.cri.container-type"] == "sandbox";
    let expected = if is_sandbox {
        String::new()
    } else {
        format!("{message}\n")
    };
    expect(stderr == expected, format!("stderr is {stderr:?}"));
    let pid_file = fs::exists(bundle.path().join("init.pid")).expect("stat");
    expect(!pid_file, "a pid file exists".to_owned());
    let state = container.state();
    expect(state.is_none(), format!("the delegate knows {state:?}"));
    let now = node.records();
    expect(now == records, format!("records {records:?} are {now:?}"));
    let same = bundle.config_bytes() == config;
    expect(same, "config.json was changed".to_owned());
    let now = host::mounts_below(node.dir().path());
    expect(now == mounts, format!("mounts {mounts:?} are {now:?}"));
    Refusal { message, failures }
}

/// Returns the entries of a directory, which must be empty or missing.
pub fn unexpected_entries(directory: &Path) -> Vec<String> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        entries => entries.expect("a directory"),
    };
    let failure = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        format!("{} exists", path.display())
    };
    entries.map(failure).collect()
}

/// Returns the mounts of a device on the host and in a process's namespace.
pub fn unexpected_mounts(device: &LoopDevice, pid: Option<i32>) -> Vec<String> {
    let inside = pid.map(host::mounts_of).unwrap_or_default();
    let inside = inside
        .into_iter()
        .filter(|mount| mount.device == device.number());
    let lines = device
        .host_mounts()
        .into_iter()
        .chain(inside.map(|mount| mount.line));
    lines.map(|line| format!("mounted: {line}")).collect()
}

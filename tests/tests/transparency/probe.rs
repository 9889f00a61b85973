//! A delegate that writes down how it was called.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use runcrust_tests::Node;

/// Lines of proc(5)'s `status` that a process has from its caller.
const INHERITED: [&str; 18] = [
    "Name",
    "Umask",
    "PPid",
    "Uid",
    "Gid",
    "Groups",
    "NSpgid",
    "NSsid",
    "NoNewPrivs",
    "Seccomp",
    "SigPnd",
    "SigBlk",
    "SigIgn",
    "SigCgt",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapAmb",
];

/// Looks at itself while nothing of its own is changed: for a command with a redirection dash
/// changes its descriptors, and for any command, for a moment, its signal mask.
const SCRIPT: &str = r#"#!/bin/sh
while IFS= read -r line; do echo "$line"; done </proc/$$/status >OUTPUT/status
/usr/bin/find /proc/$$/fd /proc/$$/ns /proc/$$/cwd -type l -fprintf OUTPUT/links '%p %l\n'
for file in cmdline environ limits oom_score_adj cgroup; do
    /bin/cat /proc/$$/$file >OUTPUT/$file
done
/bin/cat >OUTPUT/stdin
echo $$ >OUTPUT/pid
echo to stdout
echo to stderr >&2
[ -z "$PROBE_SIGNAL" ] || kill -$PROBE_SIGNAL $$
exit ${PROBE_EXIT:-0}
"#;

/// A script, and the directory where it writes.
pub(crate) struct Probe {
    pub(crate) program: PathBuf,
    output: PathBuf,
}

/// What the probe saw.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    /// By name: the arguments, the environment, the descriptors, …
    facts: BTreeMap<String, String>,
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Probe {
    /// Installs a probe as the delegate of a node. By its name it is a runc or a crun.
    pub(crate) fn install(node: &Node) -> Self {
        let output = node.dir().subdir("probe");
        let name = format!("{}-probe", node.handler().delegate());
        let path = runcrust_tests::node::utf8(&output).to_owned();
        let probe = Self {
            program: node.dir().join(name),
            output,
        };
        fs::write(&probe.program, SCRIPT.replace("OUTPUT", &path)).expect("write the probe");
        fs::set_permissions(&probe.program, Permissions::from_mode(0o755)).expect("chmod");
        delegate_to(node, &probe.program);
        probe
    }

    /// Runs a command that ends in the probe, with this standard input.
    pub(crate) fn watch(&self, command: &mut Command, input: &Path) -> Seen {
        let _ = fs::remove_dir_all(&self.output);
        fs::create_dir(&self.output).expect("mkdir");
        command.stdin(File::open(input).expect("the input"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("a child process");
        let pid = child.id();
        let output = child.wait_with_output().expect("wait for it");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let read = |name: &str| {
            let bytes = fs::read(self.output.join(name));
            let bytes = bytes.unwrap_or_else(|error| {
                panic!("{name}: {error}: the probe wasn't reached: {stderr}")
            });
            String::from_utf8_lossy(&bytes).into_owned()
        };
        assert_eq!(read("pid").trim(), pid.to_string(), "the same process");
        let mut facts = BTreeMap::new();
        for name in [
            "cmdline",
            "environ",
            "limits",
            "oom_score_adj",
            "cgroup",
            "stdin",
        ] {
            facts.insert(name.to_owned(), read(name));
        }
        for line in read("status").lines() {
            let (name, value) = line.split_once(':').expect("a name and a value");
            if INHERITED.contains(&name) {
                facts.insert(name.to_owned(), value.trim().to_owned());
            }
        }
        assert!(INHERITED.iter().all(|name| facts.contains_key(*name)));
        for line in read("links").lines() {
            let (name, target) = line.split_once(' ').expect("a name and a target");
            // Each run has pipes of its own.
            let target = if target.starts_with("pipe:") {
                "a pipe"
            } else {
                target
            };
            let name = name
                .rsplit_once(&format!("{pid}/"))
                .expect("below its own")
                .1;
            facts.insert(name.to_owned(), target.to_owned());
        }
        Seen {
            facts,
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        }
    }

    /// Whether a command ends in the probe, or in runcrust's refusal of a config with `Mounts`.
    pub(crate) fn is_reached(&self, command: &mut Command) -> bool {
        let _ = fs::remove_dir_all(&self.output);
        fs::create_dir(&self.output).expect("mkdir");
        let output = command.stdin(Stdio::null()).output().expect("a command");
        let reached = self.output.join("pid").exists();
        let refused = String::from_utf8_lossy(&output.stderr).contains("\"Mounts\"");
        assert_eq!(reached, output.status.success(), "{output:?}");
        assert_eq!(reached, !refused, "{output:?}");
        reached
    }
}

impl Seen {
    /// A fact, such as `cmdline` or `fd/3`.
    #[track_caller]
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// How it ended, and what it said.
    pub(crate) fn answer(&self) -> (ExitStatus, &str, &str) {
        (self.status, &self.stdout, &self.stderr)
    }
}

/// Writes runcrust's configuration anew, with another delegate.
fn delegate_to(node: &Node, delegate: &Path) {
    let file = node.handler().configuration();
    let text = fs::read_to_string(&file).expect("the configuration");
    let lines = text.lines().filter(|line| !line.starts_with("delegate "));
    let text: Vec<&str> = lines.collect();
    let delegate = format!("delegate = {delegate:?}");
    fs::write(&file, format!("{delegate}\n{}\n", text.join("\n"))).expect("write");
}

//! A delegate that records how it was called.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use runcrust_tests::Node;

/// Lines of proc(5)'s `status` that a process inherits from its caller.
const INHERITED: [&str; 21] = [
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
    "CapBnd",
    "CapAmb",
    "Cpus_allowed",
    "Mems_allowed",
];

/// Files of `/proc/<pid>` that show what a process inherits from its caller.
const FILES: [&str; 8] = [
    "cmdline",
    "environ",
    "limits",
    "oom_score_adj",
    "cgroup",
    "personality",
    "timerslack_ns",
    "stat",
];

/// Fields of proc(5)'s `stat`, counted from the one after the name.
const SCHEDULED: [(&str, usize); 4] = [
    ("priority", 15),
    ("nice", 16),
    ("rt_priority", 37),
    ("policy", 38),
];

/// The script inspects itself before it runs a command with a redirection, for which dash changes its descriptors, and
/// as far as possible before any command, for which dash changes its signal mask for a moment. A `cat` may fail,
/// because a process without all capabilities may not read all files.
const SCRIPT: &str = r#"#!/bin/sh
while IFS= read -r line; do echo "$line"; done </proc/$$/status >OUTPUT/status
/usr/bin/find /proc/$$/fd /proc/$$/ns /proc/$$/cwd -type l -fprintf OUTPUT/links '%p %l\n'
for file in FILES; do
    /bin/cat /proc/$$/$file >OUTPUT/$file 2>/dev/null
done
/usr/bin/setpriv --dump >OUTPUT/setpriv
/bin/cat >OUTPUT/stdin
echo $$ >OUTPUT/pid
[ -z "$PROBE_EXEC" ] || exec $PROBE_EXEC
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

/// The record that the probe wrote.
#[derive(Debug, PartialEq)]
pub(crate) struct ProbeRecord {
    /// Facts by name: arguments, environment, descriptors, …
    facts: BTreeMap<String, String>,
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Probe {
    /// Installs a probe as the delegate of a node. Its name begins with that of the node's delegate, which sets its
    /// kind.
    pub(crate) fn install(node: &Node) -> Self {
        let output = node.dir().subdir("probe");
        let name = format!("{}-probe", node.handler().delegate());
        let path = runcrust_tests::node::utf8(&output).to_owned();
        let probe = Self {
            program: node.dir().join(name),
            output,
        };
        let script = SCRIPT.replace("OUTPUT", &path);
        let script = script.replace("FILES", &FILES.join(" "));
        fs::write(&probe.program, script).expect("write the probe");
        fs::set_permissions(&probe.program, Permissions::from_mode(0o755)).expect("chmod");
        node.handler().set_delegate(&probe.program);
        probe
    }

    /// Runs a command that execs the probe, with the file `input` as standard input.
    pub(crate) fn run(&self, command: &mut Command, input: &Path) -> ProbeRecord {
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
            let bytes = bytes
                .unwrap_or_else(|error| panic!("{name}: {error}: the probe did not run: {stderr}"));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        assert_eq!(
            read("pid").trim(),
            pid.to_string(),
            "the probe is another process"
        );
        let mut facts = BTreeMap::new();
        for name in FILES.into_iter().chain(["stdin"]) {
            facts.insert(name.to_owned(), read(name));
        }
        let stat = facts.remove("stat").unwrap_or_default();
        let (_, stat) = stat.rsplit_once(") ").expect("a name in parentheses");
        let stat: Vec<&str> = stat.split(' ').collect();
        for (name, at) in SCHEDULED {
            facts.insert(name.to_owned(), stat[at].to_owned());
        }
        for line in read("status").lines() {
            let (name, value) = line.split_once(':').expect("a name and a value");
            if INHERITED.contains(&name) {
                facts.insert(name.to_owned(), value.trim().to_owned());
            }
        }
        assert!(INHERITED.iter().all(|name| facts.contains_key(*name)));
        // prctl(2) returns these only to the process itself; setpriv inherits them.
        let bits = read("setpriv");
        let bits = bits.lines().find(|line| line.starts_with("Securebits: "));
        facts.insert(
            "securebits".to_owned(),
            bits.expect("securebits").to_owned(),
        );
        for line in read("links").lines() {
            let (name, target) = line.split_once(' ').expect("a name and a target");
            // Pipes differ between runs.
            let target = if target.starts_with("pipe:") {
                "a pipe"
            } else {
                target
            };
            let name = name
                .rsplit_once(&format!("{pid}/"))
                .expect("a path below the process's directory")
                .1;
            facts.insert(name.to_owned(), target.to_owned());
        }
        ProbeRecord {
            facts,
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr,
        }
    }
}

impl ProbeRecord {
    /// Returns a fact, such as `cmdline` or `fd/3`.
    #[track_caller]
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// Returns the record without some facts.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.facts.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    /// Returns the exit status, standard output and standard error.
    pub(crate) fn answer(&self) -> (ExitStatus, &str, &str) {
        (self.status, &self.stdout, &self.stderr)
    }
}

//! A delegate that writes down how it was called.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use runcrust_tests::Node;

/// Lines of proc(5)'s `status` that a process has from its caller.
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

/// Files of `/proc/<pid>` that say what a process has from its caller.
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

/// Who has less than all capabilities may not read all of them.
/// Looks at itself while nothing of its own is changed: for a command with a redirection dash
/// changes its descriptors, and for any command, for a moment, its signal mask.
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
        let script = SCRIPT.replace("OUTPUT", &path);
        let script = script.replace("FILES", &FILES.join(" "));
        fs::write(&probe.program, script).expect("write the probe");
        fs::set_permissions(&probe.program, Permissions::from_mode(0o755)).expect("chmod");
        node.handler().set_delegate(&probe.program);
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
        // prctl(2) tells these to the process alone, and setpriv has them from it.
        let bits = read("setpriv");
        let bits = bits.lines().find(|line| line.starts_with("Securebits: "));
        facts.insert(
            "securebits".to_owned(),
            bits.expect("securebits").to_owned(),
        );
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
}

impl Seen {
    /// A fact, such as `cmdline` or `fd/3`.
    #[track_caller]
    pub(crate) fn fact(&self, name: &str) -> &str {
        self.facts
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:#?}"))
    }

    /// The same without some facts.
    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.facts.retain(|name, _| !names.contains(&name.as_str()));
        self
    }

    /// How it ended, and what it said.
    pub(crate) fn answer(&self) -> (ExitStatus, &str, &str) {
        (self.status, &self.stdout, &self.stderr)
    }
}

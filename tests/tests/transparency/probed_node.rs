//! Calls of a node whose delegate is a probe.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node};

use crate::probe::{Probe, ProbeRecord};

/// A node whose delegate is a probe.
pub(crate) struct ProbedNode {
    pub(crate) node: Node,
    pub(crate) probe: Probe,
    pub(crate) input: PathBuf,
}

impl ProbedNode {
    pub(crate) fn new(delegate: Delegate) -> Self {
        Self::on(Node::new(delegate))
    }

    /// Replaces the node's delegate by a probe.
    pub(crate) fn on(node: Node) -> Self {
        let input = node.dir().join("input");
        fs::write(&input, "{\"memory\":{}}\n").unwrap();
        Self {
            probe: Probe::install(&node),
            node,
            input,
        }
    }

    /// Runs a shell script that then execs `program`, which inherits what the script has set.
    pub(crate) fn through(
        &self,
        script: &str,
        program: &Path,
        arguments: &[&OsStr],
    ) -> ProbeRecord {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &format!("{script}\nexec \"$0\" \"$@\"")]);
        command.arg(program).args(arguments);
        command.current_dir(self.node.dir().path()).env_clear();
        self.probe.run(&mut command, &self.input)
    }

    /// Asserts that the probe records the same with and without runcrust.
    #[track_caller]
    pub(crate) fn assert_same(&self, script: &str, arguments: &[&OsStr]) -> ProbeRecord {
        let bare = self.through(script, &self.probe.program, arguments);
        let wrapped = self.through(script, self.node.handler().path(), arguments);
        assert_eq!(
            bare, wrapped,
            "left: bare; right: by runcrust; {arguments:?}"
        );
        wrapped
    }

    pub(crate) fn bundle(&self) -> Bundle {
        Bundle::plain(self.node.dir()).write()
    }
}

pub(crate) fn os_strings<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

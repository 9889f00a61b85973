//! Callers of a node whose delegate is a probe.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Bundle, Delegate, Node};

use crate::probe::{Probe, Seen};

/// A node whose delegate is a probe.
pub(crate) struct Probed {
    pub(crate) node: Node,
    pub(crate) probe: Probe,
    pub(crate) input: PathBuf,
}

impl Probed {
    pub(crate) fn new(delegate: Delegate) -> Self {
        Self::on(Node::new(delegate))
    }

    /// From here on the node's delegate is a probe.
    pub(crate) fn on(node: Node) -> Self {
        let input = node.dir().join("input");
        fs::write(&input, "{\"memory\":{}}\n").unwrap();
        Self {
            probe: Probe::install(&node),
            node,
            input,
        }
    }

    /// A caller that gives its child this and that: it runs a script, which execs `program`.
    pub(crate) fn through(&self, script: &str, program: &Path, arguments: &[&OsStr]) -> Seen {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", &format!("{script}\nexec \"$0\" \"$@\"")]);
        command.arg(program).args(arguments);
        command.current_dir(self.node.dir().path()).env_clear();
        self.probe.watch(&mut command, &self.input)
    }

    /// The probe sees the same with and without runcrust.
    #[track_caller]
    pub(crate) fn same(&self, script: &str, arguments: &[&OsStr]) -> Seen {
        let bare = self.through(script, &self.probe.program, arguments);
        let wrapped = self.through(script, self.node.handler().path(), arguments);
        assert_eq!(bare, wrapped, "bare, and by runcrust, {arguments:?}");
        wrapped
    }

    pub(crate) fn bundle(&self) -> Bundle {
        Bundle::plain(self.node.dir()).write()
    }
}

pub(crate) fn os<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

//! The trait of a container engine, and the types of its methods.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crust_state::DelegateKind;

use crate::config_file::ConfigFile;
use crate::error::Result;
use crate::node_root::NodeRoot;
use crate::service::Service;

/// A container engine whose configuration names OCI runtimes ("handlers").
///
/// The methods that take files are pure: they turn texts into texts, and neither read nor write the node.
pub trait Engine: Debug + Sync {
    /// Returns what is the same for every configuration of the engine.
    fn info(&self) -> EngineInfo;

    /// Reads `first`, and the files that the engine reads with it. The result begins with `first`, which may not exist.
    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<ConfigFile>> {
        Ok(vec![node.read(first)?])
    }

    /// Lists the runtimes that a file sets.
    fn runtimes(&self, file: &ConfigFile) -> Result<Vec<Runtime>>;

    /// Lists the keys of a file that name a default runtime, with the name.
    fn defaults(&self, file: &ConfigFile) -> Result<Vec<(String, String)>>;

    /// Adds a handler to one of the files or to a new one, or brings it up to date. No file has a runtime of the same
    /// name that isn't runcrust's.
    fn install(&self, files: &[ConfigFile], wanted: &WantedHandler<'_>) -> Result<Edit>;

    /// Returns the file's text without the handler, which it has. `None`: the file was `install`'s alone, and is to be
    /// removed.
    fn uninstall(&self, file: &ConfigFile, handler: &str) -> Result<Option<String>>;

    /// Returns what an operator has to know when a handler is removed. `left` is the new text of each file that
    /// changes.
    fn removal_notes(&self, _files: &[ConfigFile], _left: &[Option<String>]) -> Vec<String> {
        Vec::new()
    }

    /// Texts for the tests that every engine has to pass.
    #[cfg(test)]
    fn samples(&self) -> Samples;
}

/// The name, the default file and the properties of an engine.
#[derive(Debug)]
pub struct EngineInfo {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name in messages.
    pub title: &'static str,
    /// The file that is edited if no other one is named.
    pub file: &'static str,
    /// The systemd unit that has to read the configuration again. `None` for an engine without a daemon.
    pub service: Option<Service<'static>>,
    /// Whether a handler has a setting for systemd's cgroup driver.
    pub has_systemd_cgroup: bool,
    /// Whether the engine merges the entries of one handler from several files. If it does, an entry that isn't
    /// runcrust's keeps the handler from being removed from the other files.
    pub merges_entries: bool,
}

/// A runtime in an engine's configuration.
#[derive(Debug, Default)]
pub struct Runtime {
    pub(crate) name: String,
    /// The programs that it runs: several where the engine takes the first one that exists.
    pub(crate) programs: Vec<String>,
    /// The reason why `install` can't have written the entry, whatever its programs are.
    pub(crate) mismatch: Option<String>,
}

impl Runtime {
    pub(crate) fn new(
        name: &str,
        programs: impl IntoIterator<Item = String>,
        mismatch: Option<String>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            programs: programs.into_iter().collect(),
            mismatch,
        }
    }
}

/// The handler that is to be installed.
#[derive(Debug, Clone, Copy)]
pub struct WantedHandler<'a> {
    pub(crate) handler: &'a str,
    /// The program that it runs.
    pub(crate) program: &'a str,
    /// The kind of the program's delegate, if one was found.
    pub(crate) delegate: Option<DelegateKind>,
    /// Whether systemd manages the containers' cgroups. `None`: the engine decides.
    pub(crate) systemd_cgroup: Option<bool>,
}

/// A file's new text.
#[derive(Debug)]
pub struct Edit {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

impl Edit {
    pub(crate) fn new(path: &Path, text: String) -> Self {
        Self {
            path: path.to_owned(),
            text,
            notes: Vec::new(),
        }
    }
}

/// The samples of an engine for the shared tests. The handler in these texts is `crust`.
#[cfg(test)]
#[derive(Debug)]
pub struct Samples {
    /// Texts in which `crust` isn't runcrust's, with words of the refusal.
    pub(crate) foreign: &'static [(&'static str, &'static str)],
    /// A text that makes `crust` the default runtime.
    pub(crate) default: &'static str,
    /// Texts without a handler: `uninstall` after `install` gives them back byte for byte.
    pub(crate) kept: &'static [&'static str],
    /// Texts with an older path of runcrust's, [`crate::handler::tests::OLD`], and settings of the operator's.
    pub(crate) outdated: &'static [&'static str],
    /// Texts that `install` refuses, with words of the refusal.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

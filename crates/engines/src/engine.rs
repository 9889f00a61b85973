//! The trait of a container engine, and the types of its methods.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crust_state::DelegateKind;

use crate::config_file::EngineConfigFile;
use crate::error::Result;
use crate::node_root::NodeRoot;
use crate::service::Service;

/// A container engine whose configuration names OCI runtimes ("handlers").
///
/// Methods that take [`EngineConfigFile`]s are pure: they don't access the node.
pub trait Engine: Debug + Sync {
    /// Returns the fixed properties of the engine.
    fn info(&self) -> EngineInfo;

    /// Reads `first`, and the files that the engine reads together with it. The result begins with `first`, which need
    /// not exist.
    fn read(&self, node: &NodeRoot, first: &Path) -> Result<Vec<EngineConfigFile>> {
        Ok(vec![node.read(first)?])
    }

    /// Lists the runtimes in a file.
    fn runtimes(&self, file: &EngineConfigFile) -> Result<Vec<Runtime>>;

    /// Lists the keys in a file that set the default runtime, with the name of that runtime.
    fn defaults(&self, file: &EngineConfigFile) -> Result<Vec<(String, String)>>;

    /// Adds a handler to one of the files or to a new one, or updates it. The caller has made sure that every runtime
    /// with the handler's name is runcrust's.
    fn install(&self, files: &[EngineConfigFile], spec: &HandlerSpec<'_>) -> Result<FileEdit>;

    /// Returns the text of a file that contains the handler, without the handler. Returns `None` if `install` created
    /// the file and it has to be removed.
    fn uninstall(&self, file: &EngineConfigFile, handler: &str) -> Result<Option<String>>;

    /// Returns notes for the operator about the removal of a handler. `left` is the new text of each file that changes.
    fn removal_notes(&self, _files: &[EngineConfigFile], _left: &[Option<String>]) -> Vec<String> {
        Vec::new()
    }

    /// Returns the texts for the tests that every engine has to pass.
    #[cfg(test)]
    fn samples(&self) -> Samples;
}

/// The name, the default file and the properties of an engine.
#[derive(Debug)]
pub struct EngineInfo {
    /// The name on the command line.
    pub name: &'static str,
    /// The name in messages.
    pub title: &'static str,
    /// The file that is edited if no other one is named.
    pub file: &'static str,
    /// The systemd unit that reads the configuration; `None` if the engine has no daemon.
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
    /// The programs that it runs. If there are several, the engine uses the first one that exists.
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

/// The handler that `install` adds.
#[derive(Debug, Clone, Copy)]
pub struct HandlerSpec<'a> {
    pub(crate) name: &'a str,
    pub(crate) program: &'a str,
    /// The kind of the program's delegate, if one was found.
    pub(crate) delegate: Option<DelegateKind>,
    /// Whether systemd manages the containers' cgroups; `None` to let the engine decide.
    pub(crate) systemd_cgroup: Option<bool>,
}

/// The new text of a file.
#[derive(Debug)]
pub struct FileEdit {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

impl FileEdit {
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
    /// Texts in which the handler `crust` doesn't run runcrust, each with a part of the error.
    pub(crate) foreign: &'static [(&'static str, &'static str)],
    /// A text that makes `crust` the default runtime.
    pub(crate) default: &'static str,
    /// Texts without a handler. `uninstall` after `install` restores them byte for byte.
    pub(crate) kept: &'static [&'static str],
    /// Texts with an older path of runcrust ([`crate::handler::tests::OLD_PROGRAM`]) and settings that an operator
    /// added.
    pub(crate) outdated: &'static [&'static str],
    /// Texts that `install` refuses, each with a part of the error.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

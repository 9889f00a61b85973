//! The programs on the node (runcrust, the hook, the delegate) and their configuration.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;
use crust_state::config::{CONFIG_DIRECTORY, DelegateSettings};
use crust_state::foreign::{ForeignFile, MAX_FOREIGN_SIZE, remove_leftovers, write_file};
use crust_state::{Config, DelegateKind};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;

/// The hook, which runcrust looks for in its own directory.
const HOOK: &str = "crust-mount-hook";

/// The configuration of `crust_ops`, which is in the same directory as runcrust's.
const DAEMON_CONFIGURATION: &[u8] = b"crust_ops.toml";

/// The programs that are copied. runcrust comes last, because it may need the new hook.
const PROGRAMS: [&str; 2] = [HOOK, "runcrust"];

/// A program that is to be copied to the node.
#[derive(Debug)]
pub struct ProgramCopy {
    /// The path of the copy on the node.
    pub path: PathBuf,
    /// Whether the file at the path already has the same contents.
    pub is_same: bool,
    /// The path of the copy in this process's root.
    target: PathBuf,
    bytes: Vec<u8>,
}

/// Plans to copy this program and the hook beside it into a directory of the node.
pub fn plan_copies(node: &NodeRoot, directory: &Path) -> Result<Vec<ProgramCopy>> {
    if !directory.is_absolute() {
        return Err(HandlerError::CopyTo(directory.to_owned()));
    }
    node.check_directory(directory)?;
    let link = Path::new("/proc/self/exe");
    let this_program = link
        .canonicalize()
        .map_err(|error| HandlerError::call("readlink", link, error))?;
    let sources = [this_program.with_file_name(HOOK), this_program];
    let planned = sources.iter().zip(PROGRAMS);
    let planned = planned.map(|(source, name)| plan_copy(node, source, &directory.join(name)));
    planned.collect()
}

fn plan_copy(node: &NodeRoot, source: &Path, path: &Path) -> Result<ProgramCopy> {
    let bytes = bounded::read(source, MAX_FOREIGN_SIZE);
    let bytes = bytes.map_err(|error| HandlerError::call("read", source, error))?;
    // A symbolic link with that name is replaced, not its target, which may belong to a package.
    let target = node.find(path.parent().unwrap_or(path));
    let target = target.join(path.file_name().unwrap_or_default());
    let is_same = match target.symlink_metadata() {
        Ok(metadata) if metadata.is_file() => {
            let existing = ForeignFile::read(&target)?;
            existing.is_some_and(|existing| existing.bytes() == bytes)
                && node.check_program(path).is_ok()
        }
        Ok(metadata) if metadata.is_dir() => {
            return Err(HandlerError::ProgramIsDirectory(path.to_owned()));
        }
        _ => false,
    };
    Ok(ProgramCopy {
        path: path.to_owned(),
        is_same,
        target,
        bytes,
    })
}

impl ProgramCopy {
    /// Copies the program under a temporary name and renames it. Running pods keep the old program.
    pub fn apply(&self, node: &NodeRoot) -> Result<()> {
        if self.is_same {
            return Ok(());
        }
        node.create_directory(&self.target)?;
        remove_leftovers(&self.target)?;
        Ok(write_file(&self.target, &self.bytes, 0o755)?)
    }
}

/// Fails if the hook or the delegate in the program's configuration isn't on the node. No container would start in that
/// case. `delegates` are the paths at which a delegate is looked for if none is configured. Programs in `copies` count
/// as present.
pub fn check_complete(
    node: &NodeRoot,
    program: &Path,
    delegates: &[&Path],
    copies: &[ProgramCopy],
) -> Result<()> {
    let incomplete = |error: HandlerError| HandlerError::Incomplete(error.to_string());
    let config = configuration(node, program).map_err(|error| match error {
        HandlerError::Records(reason) => HandlerError::Incomplete(reason),
        error => incomplete(error),
    })?;
    let is_present =
        |path: &Path| copies.iter().any(|copy| copy.path == path) || node.has_program(path);
    let default_hook = || {
        let is_copy = copies.iter().any(|copy| copy.path == program);
        let real = if is_copy {
            program.to_owned()
        } else {
            node.resolve(program)
        };
        real.with_file_name(HOOK)
    };
    let hook = config.hook.clone().unwrap_or_else(default_hook);
    if !is_present(&hook) {
        return Err(HandlerError::Incomplete(format!(
            "{} isn't a program on the node; hint: install crust-mount-hook beside runcrust, or set \
             `hook` in its configuration",
            hook.display()
        )));
    }
    let delegates = candidates(&config, delegates);
    if delegates.iter().any(|delegate| is_present(delegate)) {
        return Ok(());
    }
    let delegates: Vec<_> = delegates
        .iter()
        .map(|delegate| delegate.display().to_string())
        .collect();
    let name = program.file_name().unwrap_or_default().display();
    Err(HandlerError::Incomplete(format!(
        "no delegate: none of {} is a program on the node; hint: set `delegate` to the path of runc or crun, in \
         /etc/runcrust/{name}.toml on the node",
        delegates.join(", ")
    )))
}

/// The delegate of a program on the node.
#[derive(Debug)]
pub struct NodeDelegate {
    /// The delegate's path on the node, as it was configured or found.
    pub path: PathBuf,
    /// The kind that is used, configured or derived from the name.
    pub kind: DelegateKind,
    /// The settings in the program's configuration.
    pub configured: DelegateSettings,
    /// The configuration file to change: the one that is read, or the first that is looked for.
    pub file: PathBuf,
}

/// Returns the program's delegate on the node, by its configuration. `None` if the node has none yet, or the
/// configuration can't be read.
#[must_use]
pub fn find_delegate(node: &NodeRoot, program: &Path, delegates: &[&Path]) -> Option<NodeDelegate> {
    let config = configuration(node, program).ok()?;
    let mut candidates = candidates(&config, delegates).into_iter();
    let path = candidates.find(|path| node.has_program(path))?;
    let by_name = || DelegateKind::from_file_name(&node.resolve(path));
    Some(NodeDelegate {
        path: path.to_owned(),
        kind: config.delegate_kind.unwrap_or_else(by_name),
        configured: config.delegate_settings(),
        file: configuration_file(node, program),
    })
}

fn candidates<'a>(config: &'a Config, delegates: &[&'a Path]) -> Vec<&'a Path> {
    match &config.delegate {
        Some(delegate) => vec![delegate.as_path()],
        None => delegates.to_vec(),
    }
}

/// Returns the configuration that the program would read on the node. Its directories are paths in this process's own
/// root.
pub(crate) fn configuration(node: &NodeRoot, program: &Path) -> Result<Config> {
    let name: OsString = program.into();
    let loaded =
        Config::candidate_files(Some(&name)).find_map(|file| load(node, &file).transpose());
    Ok(loaded
        .transpose()?
        .unwrap_or_else(|| with_node_paths(node, Config::default())))
}

/// Returns the path on the node of the configuration file that the program reads. If no such file exists, it is the
/// first one that the program looks for.
fn configuration_file(node: &NodeRoot, program: &Path) -> PathBuf {
    let name: OsString = program.into();
    let mut files: Vec<PathBuf> = Config::candidate_files(Some(&name)).collect();
    let existing = files.iter().position(|file| node.has_file(file));
    files.swap_remove(existing.unwrap_or(0))
}

/// Returns every configuration that a program with any name could read on the node.
pub(crate) fn configurations(node: &NodeRoot) -> Result<Vec<Config>> {
    let directory = Path::new(CONFIG_DIRECTORY);
    let mut names = node.names(directory)?;
    names.retain(|name| name.ends_with(b".toml") && name != DAEMON_CONFIGURATION);
    names.sort();
    let mut configs = vec![with_node_paths(node, Config::default())];
    for name in &names {
        configs.extend(load(node, &directory.join(OsStr::from_bytes(name)))?);
    }
    Ok(configs)
}

fn load(node: &NodeRoot, file: &Path) -> Result<Option<Config>> {
    let file = node.find(file);
    if !file.exists() {
        return Ok(None);
    }
    Ok(Some(with_node_paths(node, Config::load_file(&file)?)))
}

fn with_node_paths(node: &NodeRoot, config: Config) -> Config {
    Config {
        crust_root: node.find(&config.crust_root),
        state_dir: node.find(&config.state_dir),
        ..config
    }
}

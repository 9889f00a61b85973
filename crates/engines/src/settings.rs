//! The configuration of the program that a handler runs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crust_state::Config;
use crust_state::config::CONFIG_DIRECTORY;

use crate::error::Result;
use crate::node_root::NodeRoot;

/// The configuration of `crust_ops` in the same directory.
const DAEMONS: &[u8] = b"crust_ops.toml";

/// Returns the configuration that the program would read on the node. Its directories are the paths by which this
/// process reaches them.
pub(crate) fn of(node: &NodeRoot, program: &Path) -> Result<Config> {
    let name: OsString = program.into();
    let there = Config::files(Some(&name)).find_map(|file| load(node, &file).transpose());
    Ok(there
        .transpose()?
        .unwrap_or_else(|| found(node, Config::default())))
}

/// Returns the path on the node of the configuration file that the program reads. If no such file exists, it is the
/// first one that the program looks for.
pub(crate) fn file(node: &NodeRoot, program: &Path) -> PathBuf {
    let name: OsString = program.into();
    let mut files: Vec<PathBuf> = Config::files(Some(&name)).collect();
    let there = files.iter().position(|file| node.has_file(file));
    files.swap_remove(there.unwrap_or(0))
}

/// Returns every configuration that a program could read on the node, whatever its name is.
pub(crate) fn all(node: &NodeRoot) -> Result<Vec<Config>> {
    let directory = Path::new(CONFIG_DIRECTORY);
    let mut names = node.names(directory)?;
    names.retain(|name| name.ends_with(b".toml") && name != DAEMONS);
    names.sort();
    let mut configs = vec![found(node, Config::default())];
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
    Ok(Some(found(node, Config::load_file(&file)?)))
}

fn found(node: &NodeRoot, config: Config) -> Config {
    Config {
        crust_root: node.find(&config.crust_root),
        state_dir: node.find(&config.state_dir),
        ..config
    }
}

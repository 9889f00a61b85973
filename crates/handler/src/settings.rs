//! The configuration of the program that a handler runs.

use std::ffi::OsString;
use std::path::Path;

use crust_state::Config;

use crate::error::HandlerError;
use crate::node::Node;

/// The configuration that the program would read on the node, with its directories as found from
/// here.
pub(crate) fn of(node: &Node, program: &Path) -> Result<Config, HandlerError> {
    let name: OsString = program.into();
    let mut config = Config::default();
    for file in Config::files(Some(&name)) {
        let file = node.find(&file);
        if file.exists() {
            config = Config::load_file(&file)?;
            break;
        }
    }
    config.crust_root = node.find(&config.crust_root);
    config.state_dir = node.find(&config.state_dir);
    Ok(config)
}

//! Who would miss the handler, and what it can't do without: by the configuration of its program.

use std::ffi::OsString;
use std::path::Path;

use crust_state::record::VolumeRecord;
use crust_state::{Config, CrustDirectory, Process, StateDirectory};

use crate::error::HandlerError;
use crate::node::Node;
use crate::programs::Copy;

/// Fails where a live sandbox or container has a volume, or a sandbox lives that was made for volumes.
/// `program` is what the handler runs: its name selects the configuration that says where the records
/// are. What can't be read may be in use.
pub fn check_unused(node: &Node, program: &Path) -> Result<(), HandlerError> {
    let config = config(node, program)?;
    let mut in_use = volumes(node, &config)?;
    in_use.extend(sandboxes(&config)?);
    in_use.dedup();
    if in_use.is_empty() {
        return Ok(());
    }
    Err(HandlerError::InUse(in_use))
}

/// Fails where the hook or the delegate, as the program's configuration has them, isn't on the node:
/// no container would start. `delegates` are where one is looked for that isn't configured, `copies`
/// come before the first container.
pub fn check_complete(
    node: &Node,
    program: &Path,
    delegates: &[&Path],
    copies: &[Copy],
) -> Result<(), HandlerError> {
    let incomplete = |error: HandlerError| HandlerError::Incomplete(error.to_string());
    let config = config(node, program).map_err(|error| match error {
        HandlerError::Records(reason) => HandlerError::Incomplete(reason),
        error => incomplete(error),
    })?;
    let is_there =
        |path: &Path| copies.iter().any(|copy| copy.path == path) || node.has_program(path);
    let beside = || {
        let is_copy = copies.iter().any(|copy| copy.path == program);
        let real = if is_copy {
            program.to_owned()
        } else {
            node.real(program)
        };
        real.with_file_name("crust-mount-hook")
    };
    let hook = config.hook.clone().unwrap_or_else(beside);
    if !is_there(&hook) {
        return Err(HandlerError::Incomplete(format!(
            "{} isn't a program on the node; hint: install crust-mount-hook beside runcrust, or set \
             `hook` in its configuration",
            hook.display()
        )));
    }
    let delegates = match &config.delegate {
        Some(delegate) => vec![delegate.as_path()],
        None => delegates.to_vec(),
    };
    if delegates.iter().any(|delegate| is_there(delegate)) {
        return Ok(());
    }
    let delegates: Vec<_> = delegates
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    let name = program.file_name().unwrap_or_default().display();
    Err(HandlerError::Incomplete(format!(
        "no delegate: none of {} is a program on the node; hint: set `delegate` in \
         /etc/runcrust/{name}.toml there, to where runc or crun is",
        delegates.join(", ")
    )))
}

/// The configuration that the program would read on the node, with its directories as found from
/// here.
fn config(node: &Node, program: &Path) -> Result<Config, HandlerError> {
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

fn volumes(node: &Node, config: &Config) -> Result<Vec<String>, HandlerError> {
    let crust = CrustDirectory::below(node.root(), config);
    let mut found = crust.records()?;
    // Of volumes that were staged for Kata there is no list but this.
    if let Some(state) = StateDirectory::open(&config.state_dir)? {
        for device in state.owned_devices()? {
            for target in state.owners_of(device)? {
                let record = crust.record(&target)?;
                found.extend(record.map(|record| (target.volume_name(), record)));
            }
        }
    }
    let mut in_use: Vec<String> = found
        .iter()
        .flat_map(|(name, record)| users(name, record))
        .collect();
    in_use.sort();
    in_use.dedup();
    Ok(in_use)
}

fn users(volume: &str, record: &VolumeRecord) -> Vec<String> {
    let live = record.users.iter().filter(|user| user.process.is_alive());
    live.map(|user| format!("volume {volume} is in use by {user}"))
        .collect()
}

/// One that was made for volumes takes more of them, and is to be released at its end.
fn sandboxes(config: &Config) -> Result<Vec<String>, HandlerError> {
    let Some(state) = StateDirectory::open(&config.state_dir)? else {
        return Ok(Vec::new());
    };
    let live = |process: &Process| process.is_alive();
    let sandboxes = state.every_sandbox()?.into_iter();
    let sandboxes = sandboxes.filter(|sandbox| live(&sandbox.process));
    let told = sandboxes.map(|it| format!("sandbox {} of pod {} lives", it.id, it.pod_uid));
    Ok(told.collect())
}

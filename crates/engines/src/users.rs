//! Who would miss the handler: by the records that its program keeps.

use std::collections::HashSet;
use std::path::Path;

use crust_state::record::VolumeRecord;
use crust_state::{Config, CrustDirectory, Process, StateDirectory};

use crate::error::HandlerError;
use crate::node::Node;
use crate::settings;

/// Fails where a live sandbox or container has a volume, or a sandbox lives that was made for volumes.
/// `program` is what the handler runs: its name selects the configuration that says where the records
/// are. What can't be read may be in use.
pub fn check_unused(node: &Node, program: &Path) -> Result<(), HandlerError> {
    refuse(in_use(node, &settings::of(node, program)?)?)
}

/// The same for every program that could run here: by the defaults, and by each configuration in
/// `/etc/runcrust`.
pub fn check_unused_by_any(node: &Node) -> Result<(), HandlerError> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for config in settings::all(node)? {
        if seen.insert((config.crust_root.clone(), config.state_dir.clone())) {
            found.extend(in_use(node, &config)?);
        }
    }
    refuse(found)
}

fn refuse(mut in_use: Vec<String>) -> Result<(), HandlerError> {
    // Two configurations may have a directory in common.
    let mut told = HashSet::new();
    in_use.retain(|user| told.insert(user.clone()));
    if in_use.is_empty() {
        return Ok(());
    }
    Err(HandlerError::InUse(in_use))
}

fn in_use(node: &Node, config: &Config) -> Result<Vec<String>, HandlerError> {
    let mut in_use = volumes(node, config)?;
    in_use.extend(sandboxes(config)?);
    Ok(in_use)
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

#[cfg(test)]
mod tests;

//! Whether live containers need a handler, by the records that its program keeps.

use std::collections::HashSet;
use std::path::Path;

use crust_state::record::VolumeRecord;
use crust_state::{Config, CrustDirectory, Process, StateDirectory};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::settings;

/// Fails if a live sandbox or container has a volume, or a sandbox lives that was made for volumes. `program` is what
/// the handler runs: its name selects the configuration that says where the records are. Records that can't be read may
/// be in use.
pub fn check_unused(node: &NodeRoot, program: &Path) -> Result<()> {
    refuse(users(node, &settings::of(node, program)?)?)
}

/// Does the same for every program that could run on the node: for the default configuration, and for each one in
/// `/etc/runcrust`.
pub fn check_unused_by_any(node: &NodeRoot) -> Result<()> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for config in settings::all(node)? {
        if seen.insert((config.crust_root.clone(), config.state_dir.clone())) {
            found.extend(users(node, &config)?);
        }
    }
    refuse(found)
}

fn refuse(mut users: Vec<String>) -> Result<()> {
    // Two configurations may have a directory in common.
    let mut seen = HashSet::new();
    users.retain(|user| seen.insert(user.clone()));
    if users.is_empty() {
        return Ok(());
    }
    Err(HandlerError::InUse(users))
}

fn users(node: &NodeRoot, config: &Config) -> Result<Vec<String>> {
    let mut users = volumes(node, config)?;
    users.extend(sandboxes(config)?);
    Ok(users)
}

fn volumes(node: &NodeRoot, config: &Config) -> Result<Vec<String>> {
    let crust = CrustDirectory::below(node.path(), config);
    let mut found = crust.records()?;
    // The volumes that were staged for Kata are listed nowhere else.
    if let Some(state) = StateDirectory::open(&config.state_dir)? {
        for device in state.owned_devices()? {
            for target in state.owners_of(device)? {
                let record = crust.record(&target)?;
                found.extend(record.map(|record| (target.volume_name(), record)));
            }
        }
    }
    let live = |(name, record): &(String, VolumeRecord)| {
        let users = record.users.iter().filter(|user| user.process.is_alive());
        let users = users.map(|user| format!("volume {name} is in use by {user}"));
        users.collect::<Vec<_>>()
    };
    let mut users: Vec<String> = found.iter().flat_map(live).collect();
    users.sort();
    users.dedup();
    Ok(users)
}

/// Returns the live sandboxes that were made for volumes: they can take more of them.
fn sandboxes(config: &Config) -> Result<Vec<String>> {
    let Some(state) = StateDirectory::open(&config.state_dir)? else {
        return Ok(Vec::new());
    };
    let live = |process: &Process| process.is_alive();
    let mut sandboxes = state.every_sandbox()?;
    sandboxes.retain(|sandbox| live(&sandbox.process));
    let users = sandboxes
        .iter()
        .map(|it| format!("sandbox {} of pod {} lives", it.id, it.pod_uid));
    Ok(users.collect())
}

#[cfg(test)]
mod tests;

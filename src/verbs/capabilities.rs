//! `capabilities`: what the CRUST interface tells of this runtime on this host.

use crust_mount::capabilities::{can_grow, mountable};
use crust_state::Config;
use serde_json::{Value, json};

use super::Failure;

/// Of `RuntimeCapability.RPC.Type` what holds wherever volumes can be mounted.
const ALWAYS: [&str; 4] = [
    "FS_GROUP_CHANGE_POLICY_ALWAYS",
    "FS_GROUP_CHANGE_POLICY_ROOT_MISMATCH",
    "SUBPATH",
    "VOLUME_STATS",
];

const RESIZE: &str = "VOLUME_RESIZE";

pub(super) fn capabilities(config: &Config) -> Result<Value, Failure> {
    let file_systems = mountable(&config.fstypes).map_err(|error| Failure::internal(&error))?;
    let grows = can_grow(&file_systems).map_err(|error| Failure::internal(&error))?;
    // Without a file system there is nothing to be capable of.
    let some = ALWAYS.into_iter().filter(|_| !file_systems.is_empty());
    let mut capabilities: Vec<&str> = some.chain(grows.then_some(RESIZE)).collect();
    capabilities.retain(|name| !config.capabilities_off.iter().any(|off| off == name));
    Ok(json!({"capabilities": capabilities, "file_systems": file_systems}))
}

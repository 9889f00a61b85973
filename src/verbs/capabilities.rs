//! `capabilities`: what the CRUST interface tells of this runtime on this host.

use crust_blockfs::selinux;
use crust_state::Config;
use crust_volume::capabilities::{can_grow, mountable};
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
/// Where no policy is enforced labels mean nothing.
const LABEL_ON_MOUNT: &str = "SELINUX_RELABEL_ON_MOUNT";

pub(super) fn capabilities(config: &Config) -> Result<Value, Failure> {
    let file_systems = mountable(&config.fstypes).map_err(|error| Failure::internal(&error))?;
    let grows = can_grow(&file_systems).map_err(|error| Failure::internal(&error))?;
    let able = Able {
        mounts: !file_systems.is_empty(),
        grows,
        labels: selinux::enforces(),
    };
    let mut capabilities = able.capabilities();
    capabilities.retain(|name| !config.capabilities_off.iter().any(|off| off == name));
    Ok(json!({"capabilities": capabilities, "file_systems": file_systems}))
}

/// What this host allows.
struct Able {
    mounts: bool,
    grows: bool,
    labels: bool,
}

impl Able {
    fn capabilities(&self) -> Vec<&'static str> {
        // Without a file system there is nothing to be capable of.
        let always = ALWAYS.into_iter().filter(|_| self.mounts);
        let grows = self.grows.then_some(RESIZE);
        let labels = (self.labels && self.mounts).then_some(LABEL_ON_MOUNT);
        always.chain(labels).chain(grows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_promised_only_where_a_policy_is_enforced() {
        for (mounts, labels, expected) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let able = Able {
                mounts,
                labels,
                grows: false,
            };
            let promised = able.capabilities().contains(&LABEL_ON_MOUNT);
            assert_eq!(promised, expected, "{mounts} {labels}");
        }
    }
}

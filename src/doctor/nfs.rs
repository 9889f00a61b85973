//! Checks whether this node can mount network volumes. Many nodes need none, so a missing client is no problem.

use crust_nfs::client;
use crust_state::Config;
use crust_state::check::Finding;
use crust_state::info::VolumeType;
use crust_volume::host_features::{HostFeaturesError, mountable_fstypes};

const NFS_CLIENT: &str = "NFS client";

pub(super) fn check(config: &Config) -> Finding {
    let fstypes = config.fstypes.iter();
    let configured = fstypes.filter(|it| VolumeType::from_fstype(it) == VolumeType::Network);
    let configured: Vec<String> = configured.cloned().collect();
    let found = mountable_fstypes(&configured);
    judge(&configured, found, client::has_statd())
}

/// `has_statd` says whether rpc.statd runs.
fn judge(
    configured: &[String],
    found: Result<Vec<String>, HostFeaturesError>,
    has_statd: bool,
) -> Finding {
    let found = match found {
        Ok(found) => found,
        Err(error) => return Finding::from_error(NFS_CLIENT, &error),
    };
    let text = if configured.is_empty() {
        "not used: `fstypes` in runcrust's configuration has neither nfs4 nor nfs".to_owned()
    } else if found.is_empty() {
        "this kernel has no NFS client, so this node can't use network volumes".to_owned()
    } else if has_statd {
        format!("{}; rpc.statd runs", found.join(", "))
    } else {
        format!(
            "{}; rpc.statd doesn't run, so version 3 needs the mount option nolock",
            found.join(", ")
        )
    };
    Finding::pass(NFS_CLIENT, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finding_says_what_the_node_can_mount() {
        let list = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (configured, found, has_statd, expected) in [
            (
                &["nfs4", "nfs"][..],
                &["nfs4", "nfs"][..],
                true,
                "nfs4, nfs; rpc.statd runs",
            ),
            (&["nfs4"], &["nfs4"], false, "nfs4; rpc.statd doesn't run"),
            (&["nfs4"], &[], true, "this kernel has no NFS client"),
            (&[], &[], true, "not used"),
        ] {
            let finding = judge(&list(configured), Ok(list(found)), has_statd);
            assert!(finding.found.starts_with(expected), "{finding}");
        }
    }
}

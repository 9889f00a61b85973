//! Whether live containers need a handler, by the records that its program keeps.

use std::collections::HashSet;
use std::path::Path;

use crust_state::record::VolumeRecord;
use crust_state::{Config, CrustDirectory, Process, StateDirectory};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::programs::{configuration, configurations};

/// Fails if a live sandbox or container has a volume, or a sandbox lives that was made for volumes. `program` is what
/// the handler runs: its name selects the configuration that says where the records are. Records that can't be read may
/// be in use.
pub fn check_unused(node: &NodeRoot, program: &Path) -> Result<()> {
    refuse(users(node, &configuration(node, program)?)?)
}

/// Does the same for every program that could run on the node: for the default configuration, and for each one in
/// `/etc/runcrust`.
pub fn check_unused_by_any(node: &NodeRoot) -> Result<()> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for config in configurations(node)? {
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
    let crust = CrustDirectory::with_root(node.path(), config);
    let mut found = crust.records()?;
    // The volumes that were staged for Kata are listed nowhere else.
    if let Some(state) = StateDirectory::open(&config.state_dir)? {
        for device in state.devices_with_volumes()? {
            for target in state.volumes_on_device(device)? {
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
    let mut sandboxes = state.all_sandboxes()?;
    sandboxes.retain(|sandbox| live(&sandbox.process));
    let users = sandboxes
        .iter()
        .map(|it| format!("sandbox {} of pod {} lives", it.id, it.pod_uid));
    Ok(users.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use crust_state::record::Version;
    use crust_state::sandbox::SandboxRecord;

    use super::*;

    /// Writes the record of a live sandbox into a state directory.
    fn live(root: &Path, state_dir: &str, id: &str) {
        let state = StateDirectory::create(&root.join(state_dir)).unwrap();
        let record = SandboxRecord {
            version: Version,
            id: id.to_owned(),
            pod_uid: "pod".to_owned(),
            process: Process::current().unwrap(),
            mount_label: None,
            failures: Vec::new(),
        };
        state.write_sandbox(&record).unwrap();
    }

    fn in_use(root: &Path) -> Vec<String> {
        match check_unused_by_any(&NodeRoot::new(root)) {
            Ok(()) => Vec::new(),
            Err(HandlerError::InUse(found)) => found,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn users_are_found_once_by_every_configuration() {
        let lab = tempfile::Builder::new().tempdir_in("/run").unwrap();
        fs::set_permissions(lab.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for directory in ["etc/runcrust", "run"] {
            fs::create_dir_all(lab.path().join(directory)).unwrap();
        }
        let write = |name: &str, text: &str| {
            fs::write(lab.path().join("etc/runcrust").join(name), text).unwrap();
        };
        assert_eq!(in_use(lab.path()), Vec::<String>::new());
        live(lab.path(), "run/runcrust", "by-the-defaults");
        live(lab.path(), "run/two", "by-two");
        live(lab.path(), "run/none", "by-nobody");
        live(lab.path(), "run/one", "by-one");
        write("config.toml", "state_dir = \"/run/one\"\n");
        write("runcrust-two.toml", "state_dir = \"/run/two\"\n");
        let same = "state_dir = \"/run/two\"\ncrust_root = \"/run/other\"\n";
        write("runcrust-same.toml", same);
        write("runcrust-none.toml.off", "state_dir = \"/run/none\"\n");
        let sentence = |id: &str| format!("sandbox {id} of pod pod lives");
        let expected = ["by-the-defaults", "by-one", "by-two"].map(sentence);
        assert_eq!(in_use(lab.path()), expected);
        // A link that leads nowhere is no configuration, and one that can't be read may have users.
        symlink("/nowhere", lab.path().join("etc/runcrust/other.toml")).unwrap();
        assert_eq!(in_use(lab.path()), expected);
        write("broken.toml", "no_such_key = 1\n");
        let error = check_unused_by_any(&NodeRoot::new(lab.path())).unwrap_err();
        assert!(matches!(error, HandlerError::Records(_)), "{error}");
        assert!(
            error.to_string().contains("etc/runcrust/broken.toml"),
            "{error}"
        );
    }
}

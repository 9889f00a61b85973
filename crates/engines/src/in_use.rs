//! Checks whether live containers need a handler, by the records that its program keeps.

use std::collections::HashSet;
use std::path::Path;

use crust_state::record::VolumeRecord;
use crust_state::{Config, CrustDirectory, StateDirectory};

use crate::error::{HandlerError, Result};
use crate::node_root::NodeRoot;
use crate::programs::{configuration, configurations};

/// Fails if a live sandbox or container uses a volume, or if a sandbox that was created for volumes is alive. `program`
/// is the program that the handler runs. Its name selects the configuration, which contains the paths of the records.
/// Also fails if records can't be read.
pub fn check_unused(node: &NodeRoot, program: &Path) -> Result<()> {
    fail_if_any(users(node, &configuration(node, program)?)?)
}

/// Checks as [`check_unused`] does, but for every program that could run on the node: for the default configuration,
/// and for each configuration in `/etc/runcrust`.
pub fn check_unused_by_any(node: &NodeRoot) -> Result<()> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for config in configurations(node)? {
        if seen.insert((config.crust_root.clone(), config.state_dir.clone())) {
            found.extend(users(node, &config)?);
        }
    }
    fail_if_any(found)
}

fn fail_if_any(mut users: Vec<String>) -> Result<()> {
    // Two configurations may have the same state directory.
    let mut seen = HashSet::new();
    users.retain(|user| seen.insert(user.clone()));
    if users.is_empty() {
        return Ok(());
    }
    Err(HandlerError::InUse(users))
}

fn users(node: &NodeRoot, config: &Config) -> Result<Vec<String>> {
    let mut users = volume_users(node, config)?;
    users.extend(live_sandboxes(config)?);
    Ok(users)
}

fn volume_users(node: &NodeRoot, config: &Config) -> Result<Vec<String>> {
    let crust = CrustDirectory::with_root(node.path(), config);
    let mut found = crust.records()?;
    // Volumes that were staged for Kata are only listed in the state directory.
    if let Some(state) = StateDirectory::open(&config.state_dir)? {
        for backing in state.backings_with_volumes()? {
            for target in state.volumes_on(backing)? {
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

/// Returns the live sandboxes that were created for volumes. Further volumes can still be mounted in them.
fn live_sandboxes(config: &Config) -> Result<Vec<String>> {
    let Some(state) = StateDirectory::open(&config.state_dir)? else {
        return Ok(Vec::new());
    };
    let mut sandboxes = state.all_sandboxes()?;
    sandboxes.retain(|sandbox| sandbox.process.is_alive());
    let users = sandboxes
        .iter()
        .map(|sandbox| format!("sandbox {} of pod {} is alive", sandbox.id, sandbox.pod_uid));
    Ok(users.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use crust_state::Process;
    use crust_state::record::Version;
    use crust_state::sandbox::SandboxRecord;

    use super::*;

    /// Writes the record of a live sandbox into a state directory.
    fn write_live_sandbox(root: &Path, state_dir: &str, id: &str) {
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

    fn users_on_node(root: &Path) -> Vec<String> {
        match check_unused_by_any(&NodeRoot::new(root)) {
            Ok(()) => Vec::new(),
            Err(HandlerError::InUse(found)) => found,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn users_by_all_configurations_are_found_once() {
        let directory = tempfile::Builder::new().tempdir_in("/run").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["etc/runcrust", "run"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        let write = |name: &str, text: &str| {
            fs::write(directory.path().join("etc/runcrust").join(name), text).unwrap();
        };
        assert_eq!(users_on_node(directory.path()), Vec::<String>::new());
        write_live_sandbox(directory.path(), "run/runcrust", "by-the-defaults");
        write_live_sandbox(directory.path(), "run/two", "by-two");
        write_live_sandbox(directory.path(), "run/none", "by-no-configuration");
        write_live_sandbox(directory.path(), "run/one", "by-one");
        write("config.toml", "state_dir = \"/run/one\"\n");
        write("runcrust-two.toml", "state_dir = \"/run/two\"\n");
        let same = "state_dir = \"/run/two\"\ncrust_root = \"/run/other\"\n";
        write("runcrust-same.toml", same);
        write("runcrust-none.toml.off", "state_dir = \"/run/none\"\n");
        let sentence = |id: &str| format!("sandbox {id} of pod pod is alive");
        let expected = ["by-the-defaults", "by-one", "by-two"].map(sentence);
        assert_eq!(users_on_node(directory.path()), expected);
        // A dangling link is ignored. A configuration that can't be read is an error, because there may be users.
        symlink("/nowhere", directory.path().join("etc/runcrust/other.toml")).unwrap();
        assert_eq!(users_on_node(directory.path()), expected);
        write("broken.toml", "no_such_key = 1\n");
        let error = check_unused_by_any(&NodeRoot::new(directory.path())).unwrap_err();
        assert!(matches!(error, HandlerError::Records(_)), "{error}");
        assert!(
            error.to_string().contains("etc/runcrust/broken.toml"),
            "{error}"
        );
    }
}

//! crun's `update` replaces a container's device rules by those in the resources that it is given,
//! and containerd gives those from before the config was rewritten (docs/callers.md). Where a
//! container has its volumes' devices, their rules are put beside the caller's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};

use crust_blockfs::device::Neighbours;
use crust_blockfs::{Deadline, DeviceNumber};
use crust_state::bundle::BundleRecord;
use crust_state::config::ConfigError;
use crust_state::{Config, CrustDirectory, StateDirectory, limits};
use crust_volume::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use crate::invocation::{GlobalFlags, UpdateCommand};
use crate::oci::ArrayPath;

/// The size limit of resources in bytes. They usually have a few kilobytes.
const MOST_BYTES: u64 = 1 << 20;

/// The delegate's new command line; `None` where the old one will do. Nothing in here is worth an
/// error: the delegate does what it was asked to.
pub(crate) fn keep_device_rules(
    argv: &[OsString],
    update: &UpdateCommand,
    globals: &GlobalFlags,
    config: Result<Config, ConfigError>,
) -> Option<Vec<OsString>> {
    let config = config.ok()?;
    let rules = rules(update, globals, &config).filter(|rules| !rules.is_empty())?;
    let mut input: Box<dyn Read> = if update.resources == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(&update.resources).ok()?)
    };
    let mut given = Vec::new();
    input
        .by_ref()
        .take(MOST_BYTES)
        .read_to_end(&mut given)
        .ok()?;
    // What came by standard input is gone from there, understood or not.
    let resources = with_rules(&given, rules).unwrap_or(given);
    // It must outlive the exec.
    let mut file = File::from(memfd_create("resources", MemfdFlags::empty()).ok()?);
    file.write_all(&resources).ok()?;
    // What is too long to be understood is the delegate's as it is.
    std::io::copy(&mut input, &mut file).ok()?;
    let path = format!("--resources=/proc/self/fd/{}", file.as_raw_fd());
    let _left_open = file.into_raw_fd();
    // Of options that are given twice the last one counts.
    let mut argv = argv.to_vec();
    argv.insert(update.after_flags, path.into());
    Some(argv)
}

/// The rules that were added to the container's config, as far as it still has the volumes.
fn rules(update: &UpdateCommand, globals: &GlobalFlags, config: &Config) -> Option<Vec<Value>> {
    let id = &update.id;
    let state = StateDirectory::open(&config.state_dir).ok()??;
    let container = BundleRecord::container(globals.root.as_deref(), id);
    let mut records = state.bundles().ok()?;
    records.retain(|(_, record)| record.containers.0.contains(&container));
    let crust = CrustDirectory::new(config);
    let context = Context {
        config,
        crust: &crust,
        state: &state,
        deadline: Deadline::after(limits::CREATE),
        neighbours: &Neighbours::default(),
    };
    let added = records.into_iter().flat_map(|(_, record)| record.added);
    let rules = added.filter(|added| added.array == ArrayPath::DeviceRules.name());
    let rules = rules.map(|added| added.element).filter(|rule| {
        // A record may be of an earlier container, or of one that never came to be.
        let (device, id) = (device_of(rule), id.to_str());
        matches!((device, id), (Some(device), Some(id)) if crust_volume::has_device(&context, id, device))
    });
    Some(rules.collect())
}

fn device_of(rule: &Value) -> Option<DeviceNumber> {
    let number = |key: &str| u32::try_from(rule[key].as_u64()?).ok();
    Some(DeviceNumber::new(number("major")?, number("minor")?))
}

/// The caller's resources with rules added to theirs. Without rules of the caller's crun leaves
/// those that there are.
fn with_rules(given: &[u8], rules: Vec<Value>) -> Option<Vec<u8>> {
    let mut resources: Value = serde_json::from_slice(given).ok()?;
    let devices = resources.get_mut("devices")?.as_array_mut()?;
    if devices.is_empty() {
        return None;
    }
    devices.extend(rules);
    serde_json::to_vec(&resources).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_after_the_callers_and_nothing_else_changes() {
        let rule = serde_json::json!({"allow": true, "type": "b", "major": 7, "minor": 3});
        assert_eq!(device_of(&rule), Some(DeviceNumber::new(7, 3)));
        let given = br#"{"memory":{"limit":9223372036854775807},"devices":[{"allow":false,"access":"rwm"}],"x":[]}"#;
        let with = with_rules(given, vec![rule]).unwrap();
        let expected = String::from_utf8_lossy(given).replace(
            r#""rwm"}]"#,
            r#""rwm"},{"allow":true,"type":"b","major":7,"minor":3}]"#,
        );
        assert_eq!(String::from_utf8(with).unwrap(), expected);
    }

    #[test]
    fn where_the_caller_has_no_rules_there_is_nothing_to_add() {
        for given in [
            "{}",
            r#"{"devices":[]}"#,
            r#"{"devices":null}"#,
            "",
            "[]",
            "x",
        ] {
            assert_eq!(
                with_rules(given.as_bytes(), vec![Value::Null]),
                None,
                "{given}"
            );
        }
    }
}

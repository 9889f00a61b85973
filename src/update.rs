//! Keeps the device rules of volumes in crun's `update`.
//!
//! crun's `update` replaces a container's device rules with those in the given resources. containerd passes the rules
//! from before the config was rewritten (docs/callers.md). If the container has device nodes of volumes, the rules for
//! these devices are added to the caller's.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};

use crust_blockfs::device::LoopDeviceCache;
use crust_blockfs::{Deadline, DeviceNumber};
use crust_state::bundle::BundleRecord;
use crust_state::config::ConfigError;
use crust_state::{Config, CrustDirectory, StateDirectory, timeouts};
use crust_volume::Context;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;

use crate::invocation::{GlobalFlags, UpdateCommand};
use crate::oci::ArrayPath;

/// Limit for the size of the resources in bytes. They usually have a few kilobytes.
const MAX_RESOURCES_BYTES: u64 = 1 << 20;

/// Returns the command line that makes the delegate keep the device rules of volumes; `None` if the caller's own can be
/// used. Errors are ignored, and the delegate gets the caller's command line and resources.
pub(crate) fn keep_device_rules(
    argv: &[OsString],
    update: &UpdateCommand,
    globals: &GlobalFlags,
    config: Result<Config, ConfigError>,
) -> Option<Vec<OsString>> {
    let config = config.ok()?;
    let rules = volume_rules(update, globals, &config).filter(|rules| !rules.is_empty())?;
    let mut input: Box<dyn Read> = if update.resources == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(&update.resources).ok()?)
    };
    let mut given = Vec::new();
    input
        .by_ref()
        .take(MAX_RESOURCES_BYTES)
        .read_to_end(&mut given)
        .ok()?;
    // The delegate can't read standard input again, so it gets the file even if nothing was added.
    let resources = with_rules(&given, rules).unwrap_or(given);
    // The descriptor must stay open across the exec.
    let mut file = File::from(memfd_create("resources", MemfdFlags::empty()).ok()?);
    file.write_all(&resources).ok()?;
    // Resources beyond the limit are passed on unparsed.
    std::io::copy(&mut input, &mut file).ok()?;
    let path = format!("--resources=/proc/self/fd/{}", file.as_raw_fd());
    let _left_open = file.into_raw_fd();
    // The last of repeated options wins.
    let mut argv = argv.to_vec();
    argv.insert(update.after_flags, path.into());
    Some(argv)
}

/// Returns the device rules that runcrust added to the container's config for volumes that it still uses.
fn volume_rules(
    update: &UpdateCommand,
    globals: &GlobalFlags,
    config: &Config,
) -> Option<Vec<Value>> {
    let id = &update.id;
    let state = StateDirectory::open(&config.state_dir).ok()??;
    let container = BundleRecord::container_key(globals.root.as_deref(), id);
    let mut records = state.readable_bundles().ok()?;
    records.retain(|(_, record)| record.containers.0.contains(&container));
    let crust = CrustDirectory::new(config);
    let context = Context {
        config,
        crust: &crust,
        state: &state,
        deadline: Deadline::after(timeouts::CREATE),
        loop_devices: &LoopDeviceCache::default(),
    };
    let added = records.into_iter().flat_map(|(_, record)| record.added);
    let rules = added.filter(|added| added.array == ArrayPath::DeviceRules.name());
    let rules = rules.map(|added| added.element).filter(|rule| {
        // The record may belong to an earlier container, or to a container that was never created.
        let (device, id) = (rule_device(rule), id.to_str());
        matches!((device, id), (Some(device), Some(id)) if crust_volume::uses_device(&context, id, device))
    });
    Some(rules.collect())
}

fn rule_device(rule: &Value) -> Option<DeviceNumber> {
    let number = |key: &str| u32::try_from(rule[key].as_u64()?).ok();
    Some(DeviceNumber::new(number("major")?, number("minor")?))
}

/// Adds rules to the caller's resources. Returns `None` if the resources can't be parsed, or have no device rules: crun
/// then keeps the existing rules.
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
    fn rules_are_added_after_the_callers_and_nothing_else_changes() {
        let rule = serde_json::json!({"allow": true, "type": "b", "major": 7, "minor": 3});
        assert_eq!(rule_device(&rule), Some(DeviceNumber::new(7, 3)));
        let given = br#"{"memory":{"limit":9223372036854775807},"devices":[{"allow":false,"access":"rwm"}],"x":[]}"#;
        let extended = with_rules(given, vec![rule]).unwrap();
        let expected = String::from_utf8_lossy(given).replace(
            r#""rwm"}]"#,
            r#""rwm"},{"allow":true,"type":"b","major":7,"minor":3}]"#,
        );
        assert_eq!(String::from_utf8(extended).unwrap(), expected);
    }

    #[test]
    fn resources_without_device_rules_are_unchanged() {
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

//! The records of rewritten bundles, `<state_dir>/bundles/<digest>.json`: how to undo the changes to a config.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::is_in_memory;
use crate::record::Version;
use crate::target::{Digest, TargetPath, TargetPresence};
use crust_blockfs::DeviceNumber;

/// The changes that were made to a bundle's `config.json`. A second `create` of the same bundle undoes them, and then
/// plans again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleRecord {
    pub version: Version<1>,
    /// The resolved path of the config.
    pub config: PathBuf,
    /// The containers that the config was rewritten for.
    #[serde(flatten)]
    pub containers: Containers,
    /// The mounts whose source was replaced.
    pub sources: Vec<ReplacedSource>,
    /// The elements that were added to the config's arrays.
    pub added: Vec<AddedElement>,
    /// The mounts that were removed, ordered by their index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<RemovedMount>,
    /// The file system of the config; `None` if it is unknown.
    #[serde(default, rename = "place", skip_serializing_if = "Option::is_none")]
    pub location: Option<ConfigLocation>,
    /// Whether duplicate keys were renamed, so that delegates ignore all but one of them.
    #[serde(default, rename = "unread", skip_serializing_if = "std::ops::Not::not")]
    pub has_renamed_keys: bool,
}

/// The containers of a bundle, as [`BundleRecord::container_key`] identifies them, the latest one last. A bundle may be
/// created under several ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ContainerFields", into = "ContainerFields")]
pub struct Containers(pub Vec<String>);

/// The JSON fields of [`Containers`]. Early versions of runcrust wrote and read only `container`, the latest one. Both
/// fields are written, so that early and current versions read each other's records.
#[derive(Serialize, Deserialize)]
struct ContainerFields {
    #[serde(default)]
    containers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
}

impl From<ContainerFields> for Containers {
    fn from(fields: ContainerFields) -> Self {
        if fields.containers.is_empty() {
            return Self(fields.container.into_iter().collect());
        }
        Self(fields.containers)
    }
}

impl From<Containers> for ContainerFields {
    fn from(Containers(containers): Containers) -> Self {
        Self {
            container: containers.last().cloned(),
            containers,
        }
    }
}

/// A mount that was removed from the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedMount {
    /// The index of the mount in the original list.
    pub index: usize,
    /// The original JSON text of the mount.
    pub json: String,
}

/// A mount whose source was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedSource {
    /// The new source, a path in the attach directory.
    pub attached: String,
    pub original: String,
    /// The mount's destination. An undo fails if it has changed.
    pub destination: String,
    /// The original JSON text of the mount, if more than its source was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
}

/// An element that was added to one of the config's arrays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddedElement {
    /// The keys that lead to the array, joined by dots: `hooks.createRuntime`.
    pub array: String,
    pub element: serde_json::Value,
}

/// The file system that a bundle's config is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigLocation {
    /// `st_dev` of the bundle's directory.
    device: DeviceNumber,
    /// The id of the boot in which `device` is valid.
    boot_id: String,
    /// Whether the file system is in memory, and doesn't survive a reboot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    volatile: bool,
}

/// The reason why a bundle's config doesn't exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigAbsence {
    Removed,
    /// The config's file system isn't mounted, or not in this mount namespace.
    NotMounted,
    /// The record is of an earlier boot, so its file system can't be identified by the device number.
    OtherBoot,
}

impl ConfigLocation {
    /// Returns the location of an existing config; `None` if it can't be determined.
    #[must_use]
    pub fn look_up(config: &Path) -> Option<Self> {
        let presence = TargetPath::new(config.parent()?).ok()?.presence().ok()?;
        Some(Self {
            device: presence.device,
            boot_id: presence.boot_id?,
            volatile: is_in_memory(&presence.directory) == Some(true),
        })
    }

    /// Returns the reason why a config doesn't exist. It is derived from the part of its path that exists: if that is
    /// on the recorded file system, the config was removed.
    #[must_use]
    pub fn absence(&self, config: &Path) -> ConfigAbsence {
        let path = TargetPath::new(config).ok();
        self.absence_from_presence(path.and_then(|path| path.presence().ok()).as_ref())
    }

    fn absence_from_presence(&self, presence: Option<&TargetPresence>) -> ConfigAbsence {
        let Some(TargetPresence {
            device,
            boot_id: Some(boot),
            ..
        }) = presence
        else {
            return ConfigAbsence::NotMounted;
        };
        match *boot == self.boot_id {
            true if *device == self.device => ConfigAbsence::Removed,
            true => ConfigAbsence::NotMounted,
            false if self.volatile => ConfigAbsence::Removed,
            false => ConfigAbsence::OtherBoot,
        }
    }
}

impl BundleRecord {
    /// Returns the name of a bundle's record: the digest of its config's resolved path. The container's id isn't part
    /// of it: a create that fails because the id is in use must not change the record of the container that has the id.
    #[must_use]
    pub fn record_name(config: &Path) -> Digest {
        Digest::compute(config.as_os_str().as_bytes())
    }

    /// Returns the key of a container: a digest of its id and of the delegate's `--root`, of which different spellings
    /// (`//`, `/./`, a trailing `/`) give the same key.
    #[must_use]
    pub fn container_key(root: Option<&OsStr>, id: &OsStr) -> String {
        let mut bytes = Vec::new();
        for component in Path::new(root.unwrap_or_default()).components() {
            bytes.extend_from_slice(component.as_os_str().as_bytes());
            bytes.push(b'/');
        }
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        Digest::compute(&bytes).to_string()
    }
}

/// A mount that was removed from a container's config, as it is passed to the createContainer hook. With
/// `mount_mode = "hook"`, that hook makes the mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookMount {
    /// The target path of the volume.
    pub volume: PathBuf,
    /// The directory within the volume that is mounted; empty for its root directory.
    pub subpath: PathBuf,
    /// The path in the container.
    pub destination: PathBuf,
    /// The mount options in the config.
    pub options: Vec<String>,
    /// Whether the mount has the option `ro`.
    pub read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a record. `rest` has the fields that differ between versions of runcrust.
    fn read(rest: &str) -> Result<BundleRecord, serde_json::Error> {
        let common = r#""version":1,"config":"/b/config.json","sources":[],"added":[]"#;
        serde_json::from_str(&format!("{{{common}{rest}}}"))
    }

    #[test]
    fn early_and_current_versions_read_each_others_containers() {
        for (rest, expected) in [
            (r#","containers":["a","b"]"#, &["a", "b"][..]),
            (
                r#","containers":["a","b"],"container":"b","later":{}"#,
                &["a", "b"],
            ),
            (r#","container":"b""#, &["b"]),
            (r#","written":"c""#, &[]),
        ] {
            assert_eq!(read(rest).unwrap().containers.0, expected, "{rest}");
        }
        let record = read(r#","containers":["a","b"]"#).unwrap();
        let written = serde_json::to_value(&record).unwrap();
        assert_eq!(written["container"], "b");
        assert_eq!(
            serde_json::from_value::<BundleRecord>(written).unwrap(),
            record
        );
    }

    #[test]
    fn the_absence_of_a_config_is_derived_from_its_file_system() {
        use ConfigAbsence::{NotMounted, OtherBoot, Removed};
        let presence = |device: &str, boot: &str| TargetPresence {
            version: Version,
            directory: "/b".into(),
            device: device.parse().unwrap(),
            boot_id: (!boot.is_empty()).then(|| boot.to_owned()),
        };
        for (volatile, found, expected) in [
            (false, Some(("8:1", "now")), Removed),
            (true, Some(("8:1", "now")), Removed),
            (false, Some(("8:2", "now")), NotMounted),
            (true, Some(("8:2", "now")), NotMounted),
            (false, Some(("8:1", "later")), OtherBoot),
            (false, Some(("8:2", "later")), OtherBoot),
            (true, Some(("8:2", "later")), Removed),
            (true, Some(("8:1", "")), NotMounted),
            (false, None, NotMounted),
        ] {
            let location = ConfigLocation {
                device: "8:1".parse().unwrap(),
                boot_id: "now".into(),
                volatile,
            };
            let found = found.map(|(device, boot)| presence(device, boot));
            let absence = location.absence_from_presence(found.as_ref());
            assert_eq!(absence, expected, "{volatile} {found:?}");
        }
    }

    #[test]
    fn spellings_of_a_root_give_the_same_container_key() {
        let container =
            |root, id| BundleRecord::container_key(Some(OsStr::new(root)), OsStr::new(id));
        let expected = container("/run/runc", "a");
        for root in ["/run/runc/", "/run//runc", "/run/./runc"] {
            assert_eq!(container(root, "a"), expected, "{root}");
        }
        assert_ne!(container("/run/runc", "b"), expected);
        assert_ne!(container("/run/runc/a", ""), expected);
        assert_ne!(container("run/runc", "a"), expected);
    }
}

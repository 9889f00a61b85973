//! Records under `<state_dir>/bundles`: how a bundle's config looked before it was rewritten.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::is_in_memory;
use crate::record::Version;
use crate::target::{Digest, TargetPath, TargetPresence};
use crust_blockfs::DeviceNumber;

/// The changes to a bundle's `config.json`, so that a second `create` of the same bundle can undo them and plan anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleRecord {
    /// 1.
    pub version: Version<1>,
    /// The real path of the config.
    pub config: PathBuf,
    /// For which containers.
    #[serde(flatten)]
    pub containers: Containers,
    /// Mounts whose source was replaced.
    pub sources: Vec<ReplacedSource>,
    /// Elements that were added to the config's arrays.
    pub added: Vec<AddedElement>,
    /// Mounts that were taken out, by their index before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<RemovedMount>,
    /// The place of the config, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<ConfigPlace>,
    /// Keys that stood twice were given names that nobody reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
}

/// Containers by [`BundleRecord::container`], the last one last: a bundle may be created under
/// several ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct Containers(pub Vec<String>);

/// Containers as they are written: the last one by itself too, which was all that there was first.
/// So a runcrust of then reads records of now, and the other way round.
#[derive(Serialize, Deserialize)]
struct Written {
    #[serde(default)]
    containers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
}

impl From<Written> for Containers {
    fn from(written: Written) -> Self {
        if written.containers.is_empty() {
            return Self(written.container.into_iter().collect());
        }
        Self(written.containers)
    }
}

impl From<Containers> for Written {
    fn from(Containers(containers): Containers) -> Self {
        Self {
            container: containers.last().cloned(),
            containers,
        }
    }
}

/// A mount that was taken out of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemovedMount {
    /// Its place in the list as it was.
    pub index: usize,
    /// It, as it was written.
    pub json: String,
}

/// A mount whose source was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedSource {
    /// The source that replaces it, a path in the attach directory.
    pub attached: String,
    /// The source before.
    pub original: String,
    /// The mount's destination, which must still be the same.
    pub destination: String,
    /// All of the mount as it was written, where more than its source was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<String>,
}

/// An element that was added to one of the config's arrays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AddedElement {
    /// The array, as a path of keys joined by dots: `hooks.createRuntime`.
    pub array: String,
    /// The element.
    pub element: serde_json::Value,
}

/// The file system that a bundle is on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigPlace {
    /// Its `st_dev`.
    device: DeviceNumber,
    /// The boot in which it has that.
    boot_id: String,
    /// Whether the file system ends with the boot.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    volatile: bool,
}

/// The reason why a bundle's config doesn't exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absence {
    /// It is gone.
    Gone,
    /// Its file system isn't there either: it isn't mounted, or not in this mount namespace.
    Hidden,
    /// It is of another boot, since which nobody can know its file system by a number.
    OtherBoot,
}

impl ConfigPlace {
    /// Returns the place of an existing config; `None` if that is unknown.
    #[must_use]
    pub fn of(config: &Path) -> Option<Self> {
        let presence = TargetPath::new(config.parent()?).ok()?.presence().ok()?;
        Some(Self {
            device: presence.device,
            boot_id: presence.boot_id?,
            volatile: is_in_memory(&presence.directory) == Some(true),
        })
    }

    /// Tells whether a config that doesn't exist was removed, by what is left of the path to it, on the file system
    /// that it was on.
    #[must_use]
    pub fn absence(&self, config: &Path) -> Absence {
        let left = TargetPath::new(config).ok();
        self.judge(left.and_then(|path| path.presence().ok()).as_ref())
    }

    fn judge(&self, left: Option<&TargetPresence>) -> Absence {
        let Some(TargetPresence {
            device,
            boot_id: Some(boot),
            ..
        }) = left
        else {
            return Absence::Hidden;
        };
        match *boot == self.boot_id {
            true if *device == self.device => Absence::Gone,
            true => Absence::Hidden,
            false if self.volatile => Absence::Gone,
            false => Absence::OtherBoot,
        }
    }
}

impl BundleRecord {
    /// The name of a bundle's record: a digest of its config's real path. Of a container that can't
    /// come to be, because another has its id, nothing is told but of its own bundle.
    #[must_use]
    pub fn name(config: &Path) -> Digest {
        Digest::of(config.as_os_str().as_bytes())
    }

    /// A container as its runtime knows it: a digest of `--root`, with whatever `/` and `.`, and id.
    #[must_use]
    pub fn container(root: Option<&OsStr>, id: &OsStr) -> String {
        let mut bytes = Vec::new();
        for component in Path::new(root.unwrap_or_default()).components() {
            bytes.extend_from_slice(component.as_os_str().as_bytes());
            bytes.push(b'/');
        }
        bytes.push(0);
        bytes.extend_from_slice(id.as_bytes());
        Digest::of(&bytes).to_string()
    }
}

/// A mount that was taken out of a container's config, as an argument of the createContainer hook, which makes it
/// (`mount_mode = "hook"`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookMount {
    /// The volume's target path.
    pub volume: PathBuf,
    /// The directory within the volume that is mounted; empty for all of it.
    pub subpath: PathBuf,
    /// The path in the container.
    pub destination: PathBuf,
    /// The mount's options, as they were in the config.
    pub options: Vec<String>,
    /// Whether the mount has the option `ro`.
    pub read_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `rest` is what its versions differ in.
    fn read(rest: &str) -> Result<BundleRecord, serde_json::Error> {
        let same = r#""version":1,"config":"/b/config.json","sources":[],"added":[]"#;
        serde_json::from_str(&format!("{{{same}{rest}}}"))
    }

    #[test]
    fn records_of_each_version_are_read_and_are_read_by_each() {
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
    fn a_bundle_is_gone_if_its_file_system_is_seen_or_rebooted() {
        use Absence::{Gone, Hidden, OtherBoot};
        let presence = |device: &str, boot: &str| TargetPresence {
            version: Version,
            directory: "/b".into(),
            device: device.parse().unwrap(),
            boot_id: (!boot.is_empty()).then(|| boot.to_owned()),
        };
        for (volatile, left, expected) in [
            (false, Some(("8:1", "now")), Gone),
            (true, Some(("8:1", "now")), Gone),
            (false, Some(("8:2", "now")), Hidden),
            (true, Some(("8:2", "now")), Hidden),
            (false, Some(("8:1", "later")), OtherBoot),
            (false, Some(("8:2", "later")), OtherBoot),
            (true, Some(("8:2", "later")), Gone),
            (true, Some(("8:1", "")), Hidden),
            (false, None, Hidden),
        ] {
            let place = ConfigPlace {
                device: "8:1".parse().unwrap(),
                boot_id: "now".into(),
                volatile,
            };
            let left = left.map(|(device, boot)| presence(device, boot));
            assert_eq!(place.judge(left.as_ref()), expected, "{volatile} {left:?}");
        }
    }

    #[test]
    fn a_container_is_the_same_however_its_root_is_spelt() {
        let container = |root, id| BundleRecord::container(Some(OsStr::new(root)), OsStr::new(id));
        let expected = container("/run/runc", "a");
        for root in ["/run/runc/", "/run//runc", "/run/./runc"] {
            assert_eq!(container(root, "a"), expected, "{root}");
        }
        assert_ne!(container("/run/runc", "b"), expected);
        assert_ne!(container("/run/runc/a", ""), expected);
        assert_ne!(container("run/runc", "a"), expected);
    }
}

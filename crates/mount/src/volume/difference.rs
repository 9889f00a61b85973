//! Differences between two stages of one volume, by meaning: kubelet publishes again after each restart,
//! and an upgraded driver may spell the same volume differently.

use std::fmt::Display;
use std::path::Path;

use crust_state::info::{Access, AccessMode, VolumeType};
use crust_state::{Config, DeviceNumber, FsGroupChangePolicy, MountInfo};

use super::plan::mount_options;
use crate::device::Device;

/// Returns what is staged and what is asked for instead, one sentence a difference; none where both mean
/// the same volume. Two paths are compared by the devices that they lead to now.
#[must_use]
pub fn differences(config: &Config, staged: &MountInfo, asked: &MountInfo) -> Vec<String> {
    of(config, staged, None, asked, &number)
}

/// The same of a volume that live users have from a device, whatever the staged path leads to now.
pub(super) fn differences_in_use(
    config: &Config,
    staged: &MountInfo,
    device: DeviceNumber,
    asked: &MountInfo,
) -> Vec<String> {
    of(config, staged, Some(device), asked, &number)
}

/// The device that a path leads to now.
fn number(path: &Path) -> Option<DeviceNumber> {
    let device = Device::open(path).ok()?;
    Some(device.number())
}

fn of(
    config: &Config,
    staged: &MountInfo,
    in_use: Option<DeviceNumber>,
    asked: &MountInfo,
    number: &dyn Fn(&Path) -> Option<DeviceNumber>,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |field: &str, staged: &dyn Display, asked: &dyn Display| {
        found.push(format!(
            "{field}: {staged} was staged, {asked} is asked for"
        ));
    };
    if staged.volume_type != asked.volume_type {
        let name = |info: &MountInfo| match info.volume_type {
            VolumeType::Block => "block",
            VolumeType::Network => "network",
        };
        differ("volume type", &name(staged), &name(asked));
    }
    if staged.device != asked.device {
        let before = in_use.or_else(|| number(&staged.device));
        let now = number(&asked.device);
        if before.is_none() || before != now {
            let named = |info: &MountInfo, number: Option<DeviceNumber>| {
                let path = info.device.to_string_lossy();
                match number {
                    Some(number) => format!("{path:?} ({number})"),
                    None => format!("{path:?} (no device now)"),
                }
            };
            differ("device", &named(staged, before), &named(asked, now));
        }
    } else if let (Some(before), Some(now)) = (staged.disk_seq, asked.disk_seq)
        && before != now
    {
        let device = format!("device {:?}", staged.device.to_string_lossy());
        let disk = |seq| format!("the kernel's disk {seq}");
        differ(&device, &disk(before), &disk(now));
    }
    if staged.fstype != asked.fstype {
        differ("file system", &staged.fstype, &asked.fstype);
    }
    let (before, now) = (Meaning::of(config, staged), Meaning::of(config, asked));
    let only_in = |one: &[String], other: &[String]| {
        let options = one.iter().filter(|option| !other.contains(option));
        let options: Vec<String> = options.map(|option| format!("{option:?}")).collect();
        if options.is_empty() {
            "nothing".to_owned()
        } else {
            options.join(", ")
        }
    };
    if before.options != now.options {
        let (before, now) = (&before.options, &now.options);
        differ("options", &only_in(before, now), &only_in(now, before));
    }
    if before.read_only != now.read_only {
        differ("readOnly", &before.read_only, &now.read_only);
    }
    if before.group != now.group {
        differ("fsGroup", &shown(before.group), &shown(now.group));
    } else if before.policy != now.policy {
        let (before, now) = (staged.fs_group_change_policy, asked.fs_group_change_policy);
        differ("fsGroupChangePolicy", &before, &now);
    }
    if before.access != now.access {
        let (before, now) = (staged.access_mode, asked.access_mode);
        differ("access mode", &mode(before), &mode(now));
    }
    if staged.device_node != asked.device_node {
        differ("deviceNode", &staged.device_node, &asked.device_node);
    }
    found
}

fn shown(group: Option<u32>) -> String {
    group.map_or_else(|| "none".to_owned(), |group| group.to_string())
}

fn mode(mode: Option<AccessMode>) -> &'static str {
    mode.map_or("none", AccessMode::as_str)
}

/// The part of a stage that makes a difference to a pod, however it was written.
#[derive(Debug, PartialEq, Eq)]
struct Meaning {
    /// In one form and order; as they were written where they can't be understood.
    options: Vec<String>,
    /// The pod's mount is read-only.
    read_only: bool,
    /// The group that the files get. A pod that only reads changes none.
    group: Option<u32>,
    policy: Option<FsGroupChangePolicy>,
    access: Access,
}

impl Meaning {
    fn of(config: &Config, info: &MountInfo) -> Self {
        let (options, superblock_is_read_only) = match mount_options(config, info) {
            Ok(options) => (options.canonical(), options.read_only),
            Err(_) => (info.options.clone(), false),
        };
        let read_only = info.read_only || superblock_is_read_only;
        let group = info.fs_group.filter(|_| !read_only);
        Self {
            options,
            read_only,
            group,
            policy: group.map(|_| info.fs_group_change_policy),
            access: info.access(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(change: impl FnOnce(&mut MountInfo)) -> MountInfo {
        let json =
            br#"{"volume-type": "block", "device": "/dev/a", "fstype": "ext4", "metadata": {}}"#;
        let mut info = MountInfo::parse(json).unwrap();
        change(&mut info);
        info
    }

    fn with(options: &[&str]) -> MountInfo {
        info(|info| info.options = options.iter().map(ToString::to_string).collect())
    }

    /// `/dev/a` and `/dev/link` are one device, `/dev/b` is another, and there are no others.
    fn compared(staged: &MountInfo, in_use: Option<&str>, asked: &MountInfo) -> Vec<String> {
        let config = Config {
            default_options: vec!["nodev".to_owned()],
            ..Config::default()
        };
        let in_use = in_use.map(|number| number.parse().unwrap());
        of(
            &config,
            staged,
            in_use,
            asked,
            &|path| match path.to_str() {
                Some("/dev/a" | "/dev/link") => "7:1".parse().ok(),
                Some("/dev/b") => "7:2".parse().ok(),
                _ => None,
            },
        )
    }

    #[test]
    fn what_means_the_same_does_not_differ() {
        let mode = |mode| info(|info| info.access_mode = Some(mode));
        let on = |device: &str| info(|info| info.device = device.into());
        let read_only = || info(|info| info.read_only = true);
        let group = |change: &dyn Fn(&mut MountInfo)| {
            info(|info| {
                info.read_only = true;
                info.fs_group = Some(7);
                change(info);
            })
        };
        let reader = AccessMode::SingleNodeReaderOnly;
        for (staged, asked) in [
            (
                with(&[]),
                with(&["rw", "defaults", "_netdev", "", "x-mine"]),
            ),
            (with(&["discard", "noatime"]), with(&["noatime,discard"])),
            (with(&["commit=5,commit=7"]), with(&["commit=7"])),
            (with(&["ro"]), with(&["rw", "ro"])),
            (with(&["relatime"]), with(&[])),
            (with(&["nodev"]), with(&[])),
            (with(&[]), with(&["nouuid"])),
            (
                with(&["ro"]),
                info(|info| {
                    info.options = vec!["ro".to_owned()];
                    info.read_only = true;
                }),
            ),
            (on("/dev/a"), on("/dev/link")),
            (on("/dev/gone"), on("/dev/gone")),
            (info(|_| {}), mode(AccessMode::SingleNodeMultiWriter)),
            (
                mode(AccessMode::SingleNodeWriter),
                mode(AccessMode::SingleNodeMultiWriter),
            ),
            (
                mode(reader),
                info(|info| {
                    info.access_mode = Some(reader);
                    info.read_only = true;
                }),
            ),
            (read_only(), group(&|_| {})),
            (
                info(|_| {}),
                info(|info| {
                    info.fs_group_change_policy = FsGroupChangePolicy::OnRootMismatch;
                }),
            ),
            (info(|_| {}), info(|info| info.disk_seq = "7".parse().ok())),
        ] {
            let differences = compared(&staged, None, &asked);
            assert_eq!(
                differences,
                <[String; 0]>::default(),
                "{staged:?} {asked:?}"
            );
            let differences = compared(&asked, None, &staged);
            assert_eq!(
                differences,
                <[String; 0]>::default(),
                "{asked:?} {staged:?}"
            );
        }
    }

    #[test]
    fn what_differs_is_named_with_both() {
        let mode = |mode| info(|info| info.access_mode = Some(mode));
        let on = |device: &str| info(|info| info.device = device.into());
        for (staged, asked, expected) in [
            (
                with(&["discard", "noatime"]),
                with(&["nodiscard", "noatime"]),
                r#"options: "discard" was staged, "nodiscard" is asked for"#,
            ),
            (
                with(&[]),
                with(&["noatime", "commit=5"]),
                r#"options: nothing was staged, "commit=5", "noatime" is asked for"#,
            ),
            (
                on("/dev/a"),
                on("/dev/b"),
                r#"device: "/dev/a" (7:1) was staged, "/dev/b" (7:2) is asked for"#,
            ),
            (
                on("/dev/a"),
                on("/dev/gone"),
                r#"device: "/dev/a" (7:1) was staged, "/dev/gone" (no device now) is asked for"#,
            ),
            (
                on("/dev/gone"),
                on("/dev/lost"),
                r#"device: "/dev/gone" (no device now) was staged, "/dev/lost" (no device now) is asked for"#,
            ),
            (
                info(|info| info.disk_seq = "7".parse().ok()),
                info(|info| info.disk_seq = "8".parse().ok()),
                r#"device "/dev/a": the kernel's disk 7 was staged, the kernel's disk 8 is asked for"#,
            ),
            (
                info(|_| {}),
                info(|info| info.fstype = "xfs".to_owned()),
                "file system: ext4 was staged, xfs is asked for",
            ),
            (
                info(|_| {}),
                info(|info| info.read_only = true),
                "readOnly: false was staged, true is asked for",
            ),
            (
                info(|info| info.fs_group = Some(0)),
                info(|_| {}),
                "fsGroup: 0 was staged, none is asked for",
            ),
            (
                info(|info| info.fs_group = Some(7)),
                info(|info| {
                    info.fs_group = Some(7);
                    info.fs_group_change_policy = FsGroupChangePolicy::OnRootMismatch;
                }),
                "fsGroupChangePolicy: Always was staged, OnRootMismatch is asked for",
            ),
            (
                mode(AccessMode::SingleNodeWriter),
                mode(AccessMode::SingleNodeSingleWriter),
                "access mode: SINGLE_NODE_WRITER was staged, SINGLE_NODE_SINGLE_WRITER is asked for",
            ),
            (
                info(|_| {}),
                info(|info| info.device_node = true),
                "deviceNode: false was staged, true is asked for",
            ),
            (
                info(|_| {}),
                info(|info| info.volume_type = VolumeType::Network),
                "volume type: block was staged, network is asked for",
            ),
        ] {
            assert_eq!(compared(&staged, None, &asked), [expected]);
        }
        // The file system is another one as well: each is told.
        let asked = info(|info| {
            info.options = vec!["ro".to_owned()];
            info.fstype = "xfs".to_owned();
        });
        assert_eq!(compared(&with(&[]), None, &asked).len(), 3);
    }

    #[test]
    fn a_volume_in_use_is_on_the_device_that_its_users_have() {
        let on = |device: &str| info(|info| info.device = device.into());
        for (staged, asked, same) in [
            // The link that was staged is gone, or leads elsewhere.
            ("/dev/gone", "/dev/gone", true),
            ("/dev/b", "/dev/b", true),
            ("/dev/gone", "/dev/a", true),
            ("/dev/b", "/dev/link", true),
            ("/dev/link", "/dev/b", false),
        ] {
            let differences = compared(&on(staged), Some("7:1"), &on(asked));
            assert_eq!(differences.is_empty(), same, "{differences:?}");
        }
    }
}

//! Differences between two stages of one volume, by meaning: kubelet publishes again after each restart,
//! and an upgraded driver may spell the same volume differently.

use std::fmt::Display;
use std::path::Path;

use crust_blockfs::DeviceNumber;
use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::{Access, AccessMode, VolumeType};
use crust_state::{Config, MountInfo};

use super::plan::mount_options;
use crust_blockfs::device::Device;

/// Returns what is staged and what is asked for instead, one sentence a difference; none where both mean
/// the same volume. Two paths are compared by the devices that they lead to now.
#[must_use]
pub fn differences(config: &Config, staged: &MountInfo, asked: &MountInfo) -> Vec<String> {
    of(config, staged, Users::None, asked, &number)
}

/// Returns the differences to the stage of a volume that is in use. `device` is the device that its users
/// have, whatever the staged path leads to now; `None` if that isn't known.
///
/// An access mode that doesn't tell `ReadWriteOncePod` from `ReadWriteOnce` is no difference to one that does:
/// see [`may_be_renamed`].
pub(super) fn differences_in_use(
    config: &Config,
    staged: &MountInfo,
    device: Option<DeviceNumber>,
    asked: &MountInfo,
) -> Vec<String> {
    of(config, staged, Users::Live { device }, asked, &number)
}

/// The users of the volume that is staged.
#[derive(Debug, Clone, Copy)]
enum Users {
    None,
    /// There may be some, with this device.
    Live {
        device: Option<DeviceNumber>,
    },
}

/// The device that a path leads to now.
fn number(path: &Path) -> Option<DeviceNumber> {
    let device = Device::open(path).ok()?;
    Some(device.number())
}

fn of(
    config: &Config,
    staged: &MountInfo,
    users: Users,
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
        let in_use = match users {
            Users::None => None,
            Users::Live { device } => device,
        };
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
    let is_renamed = matches!(users, Users::Live { .. }) && may_be_renamed(staged, asked);
    if before.access != now.access && !is_renamed {
        let (before, now) = (staged.access_mode, asked.access_mode);
        differ("access mode", &mode(before), &mode(now));
    }
    if staged.device_node != asked.device_node {
        differ("deviceNode", &staged.device_node, &asked.device_node);
    }
    found
}

/// Returns true if two stages with different access may be of the same claim, one of them by an older name.
///
/// kubelet says `SINGLE_NODE_WRITER` both for `ReadWriteOnce` and for `ReadWriteOncePod` as long as the driver
/// lacks `SINGLE_NODE_MULTI_WRITER` (KEP-2485), and a driver may not hand any mode on. When the driver is
/// upgraded, or downgraded, under a running pod, kubelet publishes the volume again after its own restart
/// with the other name. Nothing is changed then, and exclusive use is kept both ways: after an upgrade
/// each further pod says `SINGLE_NODE_SINGLE_WRITER` itself, and after a downgrade the record in use still
/// does.
fn may_be_renamed(staged: &MountInfo, asked: &MountInfo) -> bool {
    let is_older =
        |info: &MountInfo| matches!(info.access_mode, None | Some(AccessMode::SingleNodeWriter));
    is_older(staged) || is_older(asked)
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
    fn compared(staged: &MountInfo, users: Users, asked: &MountInfo) -> Vec<String> {
        let config = Config {
            default_options: vec!["nodev".to_owned()],
            ..Config::default()
        };
        of(&config, staged, users, asked, &|path| match path.to_str() {
            Some("/dev/a" | "/dev/link") => "7:1".parse().ok(),
            Some("/dev/b") => "7:2".parse().ok(),
            _ => None,
        })
    }

    /// The volume is in use, from `/dev/a`.
    fn used() -> Users {
        let device = Some("7:1".parse().unwrap());
        Users::Live { device }
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
            let differences = compared(&staged, Users::None, &asked);
            assert_eq!(
                differences,
                <[String; 0]>::default(),
                "{staged:?} {asked:?}"
            );
            let differences = compared(&asked, Users::None, &staged);
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
            assert_eq!(compared(&staged, Users::None, &asked), [expected]);
        }
        // The file system is another one as well: each is told.
        let asked = info(|info| {
            info.options = vec!["ro".to_owned()];
            info.fstype = "xfs".to_owned();
        });
        assert_eq!(compared(&with(&[]), Users::None, &asked).len(), 3);
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
            let differences = compared(&on(staged), used(), &on(asked));
            assert_eq!(differences.is_empty(), same, "{differences:?}");
        }
    }

    /// A driver that gains or loses `SINGLE_NODE_MULTI_WRITER` under a running pod (KEP-2485).
    #[test]
    fn a_volume_in_use_keeps_its_access_mode_under_another_name() {
        use AccessMode::{
            MultiNodeMultiWriter, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
        };
        let unknown = Users::Live { device: None };
        for (one, other, is_same_in_use) in [
            (Some(SingleNodeWriter), Some(SingleNodeSingleWriter), true),
            (None, Some(SingleNodeSingleWriter), true),
            (
                Some(SingleNodeMultiWriter),
                Some(SingleNodeSingleWriter),
                false,
            ),
            (
                Some(MultiNodeMultiWriter),
                Some(SingleNodeSingleWriter),
                false,
            ),
        ] {
            for (staged, asked) in [(one, other), (other, one)] {
                let mode = |mode| info(|info| info.access_mode = mode);
                for users in [used(), unknown] {
                    let found = compared(&mode(staged), users, &mode(asked));
                    assert_eq!(found.is_empty(), is_same_in_use, "{users:?} {found:?}");
                }
                // What isn't in use is replaced by what is asked for.
                let found = compared(&mode(staged), Users::None, &mode(asked));
                assert_eq!(found.len(), 1, "{found:?}");
            }
        }
    }
}

//! Compares the metadata of two stages of one volume by meaning. kubelet publishes volumes again after each restart,
//! and an upgraded driver may write the same metadata differently.

use std::fmt::Display;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_state::info::{AccessMode, PodAccess};
use crust_state::{Backing, Config, MountInfo};

use super::mount_source::staged_backing;
use super::plan::mount_options;

/// Returns the differences between the staged and the requested metadata, each as a phrase for an error message. Empty
/// if both have the same meaning. Device paths are compared by the devices that they lead to now.
#[must_use]
pub fn differences(config: &Config, staged: &MountInfo, requested: &MountInfo) -> Vec<String> {
    compare(
        config,
        staged,
        VolumeUse::Unused,
        requested,
        &staged_backing,
    )
}

/// Returns the differences between the staged metadata of a volume in use and the requested metadata.
///
/// `mounted` is what its users have mounted, wherever the staged path leads now; `None` if it is unknown. An
/// access mode that doesn't distinguish `ReadWriteOncePod` from `ReadWriteOnce` is equal to one that does: see
/// [`may_be_renamed`].
pub(super) fn differences_in_use(
    config: &Config,
    staged: &MountInfo,
    mounted: Option<&Backing>,
    requested: &MountInfo,
) -> Vec<String> {
    compare(
        config,
        staged,
        VolumeUse::InUse { mounted },
        requested,
        &staged_backing,
    )
}

/// Whether the staged volume is in use.
#[derive(Debug, Clone, Copy)]
enum VolumeUse<'a> {
    Unused,
    /// The volume has users, or may have some.
    InUse {
        /// The device or share that the users have mounted, if it is known.
        mounted: Option<&'a Backing>,
    },
}

fn compare(
    config: &Config,
    staged: &MountInfo,
    usage: VolumeUse<'_>,
    requested: &MountInfo,
    find_backing: &dyn Fn(&MountInfo) -> Option<Backing>,
) -> Vec<String> {
    let mut differences = Vec::new();
    let mut differ = |field: &str, staged: &dyn Display, requested: &dyn Display| {
        differences.push(format!("{field}: staged {staged}, requested {requested}"));
    };
    if staged.volume_type != requested.volume_type {
        let (staged, requested) = (staged.volume_type, requested.volume_type);
        differ("volume type", &staged.as_str(), &requested.as_str());
    }
    if staged.device != requested.device {
        let mounted = match usage {
            VolumeUse::Unused => None,
            VolumeUse::InUse { mounted } => mounted.cloned(),
        };
        let before = mounted.or_else(|| find_backing(staged));
        let now = find_backing(requested);
        if before.is_none() || before != now {
            let describe = |info: &MountInfo, backing: Option<Backing>| {
                let text = info.device.to_string_lossy();
                match backing {
                    Some(Backing::Device(number)) => format!("{text:?} ({number})"),
                    Some(Backing::Share(_)) => format!("{text:?}"),
                    None => format!("{text:?} (no device now)"),
                }
            };
            differ(
                "device",
                &describe(staged, before),
                &describe(requested, now),
            );
        }
    } else if let (Some(before), Some(now)) = (staged.disk_seq, requested.disk_seq)
        && before != now
    {
        let device = format!("device {:?}", staged.device.to_string_lossy());
        let disk = |seq| format!("disk sequence number {seq}");
        differ(&device, &disk(before), &disk(now));
    }
    if staged.fstype != requested.fstype {
        differ("file system", &staged.fstype, &requested.fstype);
    }
    let before = MountSemantics::new(config, staged);
    let now = MountSemantics::new(config, requested);
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
        differ("fsGroup", &group_text(before.group), &group_text(now.group));
    } else if before.policy != now.policy {
        let (before, now) = (
            staged.fs_group_change_policy,
            requested.fs_group_change_policy,
        );
        differ("fsGroupChangePolicy", &before, &now);
    }
    let is_renamed = matches!(usage, VolumeUse::InUse { .. }) && may_be_renamed(staged, requested);
    if before.access != now.access && !is_renamed {
        let (before, now) = (staged.access_mode, requested.access_mode);
        differ("access mode", &mode_text(before), &mode_text(now));
    }
    if staged.device_node != requested.device_node {
        differ("deviceNode", &staged.device_node, &requested.device_node);
    }
    differences
}

/// Returns true if two different access modes may come from the same persistent volume claim, one of them under an
/// older name.
///
/// kubelet passes `SINGLE_NODE_WRITER` both for `ReadWriteOnce` and for `ReadWriteOncePod` as long as the driver lacks
/// the capability `SINGLE_NODE_MULTI_WRITER` (KEP-2485), and a driver may pass on no mode at all. If the driver is
/// upgraded or downgraded while a pod runs, kubelet publishes the volume again with the other name after its own
/// restart. The staged metadata isn't changed then, and exclusive use is preserved: after an upgrade, each further pod
/// passes `SINGLE_NODE_SINGLE_WRITER` itself; after a downgrade, the record in use still contains it.
fn may_be_renamed(staged: &MountInfo, requested: &MountInfo) -> bool {
    let is_older_name =
        |info: &MountInfo| matches!(info.access_mode, None | Some(AccessMode::SingleNodeWriter));
    is_older_name(staged) || is_older_name(requested)
}

fn group_text(group: Option<u32>) -> String {
    group.map_or_else(|| "none".to_owned(), |group| group.to_string())
}

fn mode_text(mode: Option<AccessMode>) -> &'static str {
    mode.map_or("none", AccessMode::as_str)
}

/// The metadata that affects a pod, independent of how it was written.
#[derive(Debug, PartialEq, Eq)]
struct MountSemantics {
    /// In canonical form and order, or as written if they can't be parsed.
    options: Vec<String>,
    /// Whether the pod's mount is read-only.
    read_only: bool,
    /// The group that the files get; `None` for a read-only mount, which changes no files.
    group: Option<u32>,
    policy: Option<FsGroupChangePolicy>,
    access: PodAccess,
}

impl MountSemantics {
    fn new(config: &Config, info: &MountInfo) -> Self {
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
    use crust_blockfs::DeviceNumber;
    use crust_state::info::VolumeType;

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

    fn share(source: &str, options: &[&str]) -> MountInfo {
        info(|info| {
            info.volume_type = VolumeType::Network;
            info.device = source.into();
            info.fstype = "nfs".to_owned();
            info.options = options.iter().map(ToString::to_string).collect();
        })
    }

    /// Compares on a node where `/dev/a` and `/dev/link` lead to one device and `/dev/b` to another.
    fn compare_on_node(staged: &MountInfo, usage: VolumeUse, requested: &MountInfo) -> Vec<String> {
        let config = Config {
            default_options: vec!["nodev".to_owned()],
            ..Config::default()
        };
        let find_backing = |info: &MountInfo| match info.device.to_str() {
            Some("/dev/a" | "/dev/link") => "7:1".parse().ok(),
            Some("/dev/b") => "7:2".parse().ok(),
            Some(share) => share.parse().ok(),
            None => None,
        };
        compare(&config, staged, usage, requested, &find_backing)
    }

    const IN_USE_ON_DEV_A: VolumeUse<'static> = VolumeUse::InUse {
        mounted: Some(&Backing::Device(DeviceNumber::new(7, 1))),
    };

    #[test]
    fn metadata_of_the_same_meaning_does_not_differ() {
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
        for (staged, requested) in [
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
            (
                share("srv:/a", &["hard,proto=tcp"]),
                share("SRV://a/", &["tcp", "retry=3"]),
            ),
        ] {
            let differences = compare_on_node(&staged, VolumeUse::Unused, &requested);
            assert_eq!(
                differences,
                <[String; 0]>::default(),
                "{staged:?} {requested:?}"
            );
            let differences = compare_on_node(&requested, VolumeUse::Unused, &staged);
            assert_eq!(
                differences,
                <[String; 0]>::default(),
                "{requested:?} {staged:?}"
            );
        }
    }

    #[test]
    fn a_difference_is_reported_with_both_values() {
        let mode = |mode| info(|info| info.access_mode = Some(mode));
        let on = |device: &str| info(|info| info.device = device.into());
        for (staged, requested, expected) in [
            (
                with(&["discard", "noatime"]),
                with(&["nodiscard", "noatime"]),
                r#"options: staged "discard", requested "nodiscard""#,
            ),
            (
                with(&[]),
                with(&["noatime", "commit=5"]),
                r#"options: staged nothing, requested "commit=5", "noatime""#,
            ),
            (
                on("/dev/a"),
                on("/dev/b"),
                r#"device: staged "/dev/a" (7:1), requested "/dev/b" (7:2)"#,
            ),
            (
                on("/dev/a"),
                on("/dev/gone"),
                r#"device: staged "/dev/a" (7:1), requested "/dev/gone" (no device now)"#,
            ),
            (
                on("/dev/gone"),
                on("/dev/lost"),
                r#"device: staged "/dev/gone" (no device now), requested "/dev/lost" (no device now)"#,
            ),
            (
                info(|info| info.disk_seq = "7".parse().ok()),
                info(|info| info.disk_seq = "8".parse().ok()),
                r#"device "/dev/a": staged disk sequence number 7, requested disk sequence number 8"#,
            ),
            (
                info(|_| {}),
                info(|info| info.fstype = "xfs".to_owned()),
                "file system: staged ext4, requested xfs",
            ),
            (
                info(|_| {}),
                info(|info| info.read_only = true),
                "readOnly: staged false, requested true",
            ),
            (
                info(|info| info.fs_group = Some(0)),
                info(|_| {}),
                "fsGroup: staged 0, requested none",
            ),
            (
                info(|info| info.fs_group = Some(7)),
                info(|info| {
                    info.fs_group = Some(7);
                    info.fs_group_change_policy = FsGroupChangePolicy::OnRootMismatch;
                }),
                "fsGroupChangePolicy: staged Always, requested OnRootMismatch",
            ),
            (
                mode(AccessMode::SingleNodeWriter),
                mode(AccessMode::SingleNodeSingleWriter),
                "access mode: staged SINGLE_NODE_WRITER, requested SINGLE_NODE_SINGLE_WRITER",
            ),
            (
                info(|_| {}),
                info(|info| info.device_node = true),
                "deviceNode: staged false, requested true",
            ),
            (
                info(|_| {}),
                info(|info| info.volume_type = VolumeType::Network),
                "volume type: staged block, requested network",
            ),
        ] {
            let differences = compare_on_node(&staged, VolumeUse::Unused, &requested);
            assert_eq!(differences, [expected]);
        }
        let requested = info(|info| {
            info.options = vec!["ro".to_owned()];
            info.fstype = "xfs".to_owned();
        });
        let differences = compare_on_node(&with(&[]), VolumeUse::Unused, &requested);
        assert_eq!(differences.len(), 3, "options, readOnly and file system");
    }

    #[test]
    fn a_volume_in_use_is_on_the_device_that_its_users_have() {
        let on = |device: &str| info(|info| info.device = device.into());
        for (staged, requested, is_same) in [
            // The staged link is gone, or leads elsewhere now.
            ("/dev/gone", "/dev/gone", true),
            ("/dev/b", "/dev/b", true),
            ("/dev/gone", "/dev/a", true),
            ("/dev/b", "/dev/link", true),
            ("/dev/link", "/dev/b", false),
        ] {
            let differences = compare_on_node(&on(staged), IN_USE_ON_DEV_A, &on(requested));
            assert_eq!(differences.is_empty(), is_same, "{differences:?}");
        }
    }

    /// The driver gains or loses `SINGLE_NODE_MULTI_WRITER` while a pod runs (KEP-2485).
    #[test]
    fn a_volume_in_use_keeps_its_access_mode_under_another_name() {
        use AccessMode::{
            MultiNodeMultiWriter, SingleNodeMultiWriter, SingleNodeSingleWriter, SingleNodeWriter,
        };
        let unknown = VolumeUse::InUse { mounted: None };
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
            for (staged, requested) in [(one, other), (other, one)] {
                let mode = |mode| info(|info| info.access_mode = mode);
                for usage in [IN_USE_ON_DEV_A, unknown] {
                    let found = compare_on_node(&mode(staged), usage, &mode(requested));
                    assert_eq!(found.is_empty(), is_same_in_use, "{usage:?} {found:?}");
                }
                let found = compare_on_node(&mode(staged), VolumeUse::Unused, &mode(requested));
                assert_eq!(found.len(), 1, "{found:?}");
            }
        }
    }
}

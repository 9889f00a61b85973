//! The decision whether a volume may be mounted for a pod while others use its device (KEP-2857, "Potential data
//! corruption for co-scheduled pods"; KEP-2485).

use crate::backing::Backing;
use crate::config::Sharing;
use crate::record::{Superblock, User, VolumeRecord};

/// A request to make a pod the owner of a volume.
#[derive(Debug)]
pub struct OwnershipRequest<'a> {
    pub pod_uid: &'a str,
    /// Whether the volume's access mode forbids a second pod.
    pub exclusive: bool,
    /// The options that the superblock has to have.
    pub superblock: &'a Superblock,
    /// Whether the pod only reads the volume. It can then also use an existing read-only superblock.
    pub only_reads: bool,
    pub backing: &'a Backing,
}

/// The way in which the new owner's mount uses the device or share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceAccess {
    /// It isn't in use. The mount has to open a device exclusively.
    First,
    /// The mount shares an existing superblock. A share gets another superblock if the options differ.
    Joins {
        /// Whether the existing superblock is read-only.
        read_only: bool,
    },
}

impl DeviceAccess {
    /// Returns whether the mount shares a read-only superblock.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Joins { read_only: true })
    }
}

/// The reason why a pod can't become the owner of a volume.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Conflict {
    /// The access mode `SINGLE_NODE_SINGLE_WRITER` allows one pod.
    #[error(
        "its access mode SINGLE_NODE_SINGLE_WRITER (ReadWriteOncePod) allows one pod or container, and {0} uses it; hint: wait until that {noun} has ended", noun = .0.noun
    )]
    Exclusive(OwnerDescription),
    /// The configuration `shared = "deny"` allows one pod per volume.
    #[error(
        "{0} uses it, and shared = \"deny\" in runcrust's configuration allows one pod or container per volume; hint: wait until that {noun} has ended", noun = .0.noun
    )]
    SharingDenied(OwnerDescription),
    /// A superblock has one set of options. The kernel would silently ignore those of a second mount.
    #[error(
        "{owner} has it mounted as {existing}, which can't be changed to {requested} while it is in use; hint: stage the volume with the same file system and options for all of its users, or stop that {noun} first", noun = .owner.noun
    )]
    Superblock {
        owner: OwnerDescription,
        /// The superblock that is mounted.
        existing: String,
        /// The superblock that the pod requests.
        requested: String,
    },
    /// Either all files of a superblock have the label that it was mounted with, or each has its own label on the disk.
    #[error(
        "{owner} has it mounted with {existing}, and it can't be mounted with {requested} at the same time; hint: {noun}s that share a volume need the same SELinux level{level}", noun = owner.noun, level = level(owner.noun)
    )]
    Label {
        owner: OwnerDescription,
        /// The label that the volume is mounted with.
        existing: SelinuxLabel,
        /// The label that the pod requests.
        requested: SelinuxLabel,
    },
    /// Two block devices have the same data. If both were mounted, two superblocks would destroy the file system.
    #[error(
        "{owner} uses the same data through device {existing} (this volume's device is {requested}); hint: stage both volumes with the same device"
    )]
    Alias {
        owner: OwnerDescription,
        /// The device that the owner uses.
        existing: Backing,
        /// The device that the pod requests.
        requested: Backing,
    },
}

/// The SELinux label that a superblock is mounted with, as a message shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct SelinuxLabel(Option<String>);

impl SelinuxLabel {
    fn from_superblock(superblock: &Superblock) -> Self {
        Self(superblock.label().map(str::to_owned))
    }
}

impl std::fmt::Display for SelinuxLabel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(label) => write!(formatter, "the SELinux label {label}"),
            None => formatter.write_str("no SELinux label"),
        }
    }
}

/// The pod, or the container without a pod, that uses a volume, as a message names it.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnerDescription {
    name: String,
    noun: &'static str,
}

impl OwnerDescription {
    fn from_user(user: &User) -> Self {
        Self {
            name: user.owner(),
            noun: user.owner_noun(),
        }
    }
}

impl std::fmt::Display for OwnerDescription {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// Returns the end of a hint: the setting of the SELinux level in a pod, or the option of podman and docker for a
/// container.
fn level(noun: &str) -> &'static str {
    if noun == "pod" {
        ": securityContext.seLinuxOptions.level (KEP-1710)"
    } else {
        ": --security-opt label=level:LEVEL"
    }
}

/// Decides whether a pod may become the owner of a volume. `records` are those of all volumes on the volume's device
/// or share, and on devices with the same data, without users that have ended. The volume's own record may be among them.
pub fn decide_access(
    request: &OwnershipRequest<'_>,
    records: &[VolumeRecord],
    sharing: Sharing,
) -> Result<DeviceAccess, Conflict> {
    let mut access = DeviceAccess::First;
    for record in records {
        let other_pod = record
            .users
            .iter()
            .find(|user| user.pod_uid != request.pod_uid);
        let Some(user) = other_pod.or(record.users.first()) else {
            continue;
        };
        let owner = OwnerDescription::from_user(user);
        if record.backing != *request.backing {
            let (existing, requested) = (record.backing.clone(), request.backing.clone());
            return Err(Conflict::Alias {
                owner,
                existing,
                requested,
            });
        }
        if other_pod.is_some() && (request.exclusive || record.exclusive) {
            return Err(Conflict::Exclusive(owner));
        }
        if other_pod.is_some() && sharing == Sharing::Deny {
            return Err(Conflict::SharingDenied(owner));
        }
        if !record.backing.has_one_superblock() {
            access = DeviceAccess::Joins { read_only: false };
            continue;
        }
        let existing = &record.superblock;
        let requested = request
            .superblock
            .read_only_if(request.only_reads && existing.read_only);
        if existing.differs_only_in_label(&requested) {
            let (existing, requested) = (
                SelinuxLabel::from_superblock(existing),
                SelinuxLabel::from_superblock(&requested),
            );
            return Err(Conflict::Label {
                owner,
                existing,
                requested,
            });
        }
        if *existing != requested {
            let (existing, requested) = (existing.to_string(), requested.to_string());
            return Err(Conflict::Superblock {
                owner,
                existing,
                requested,
            });
        }
        let read_only = existing.read_only;
        access = DeviceAccess::Joins { read_only };
    }
    Ok(access)
}

impl std::fmt::Display for Superblock {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = if self.read_only { "ro" } else { "rw" };
        write!(formatter, "{} ({mode}", self.fstype)?;
        for option in &self.options {
            write!(formatter, ",{option}")?;
        }
        formatter.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;
    use crate::record::{UserKind, Version};

    const RW: fn() -> Superblock = || superblock(false, &[]);
    const JOINS: Result<DeviceAccess, String> = Ok(DeviceAccess::Joins { read_only: false });

    fn superblock(read_only: bool, options: &[&str]) -> Superblock {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Superblock {
            fstype: "ext4".into(),
            options,
            read_only,
        }
    }

    fn used_by(
        pod_uid: &str,
        device: &str,
        exclusive: bool,
        superblock: Superblock,
    ) -> VolumeRecord {
        let user = User {
            kind: UserKind::Sandbox,
            id: "sandbox-1".into(),
            sandbox: "sandbox-1".into(),
            pod_uid: pod_uid.into(),
            process: Process {
                pid: 1,
                start_time: 1,
                boot_id: String::new(),
                pid_namespace: None,
            },
            mounts: vec![],
            other_mounts: Vec::new(),
        };
        VolumeRecord {
            version: Version,
            backing: device.parse().unwrap(),
            superblocks: Vec::new(),
            refused_fs_group: None,
            superblock,
            exclusive,
            prepared_for: vec![],
            users: vec![user],
        }
    }

    fn decide(
        exclusive: bool,
        requested: &Superblock,
        records: &[VolumeRecord],
    ) -> Result<DeviceAccess, String> {
        let backing = &"7:1".parse().unwrap();
        let request = OwnershipRequest {
            pod_uid: "mine",
            exclusive,
            superblock: requested,
            only_reads: false,
            backing,
        };
        decide_access(&request, records, Sharing::Allow).map_err(|conflict| conflict.to_string())
    }

    #[test]
    fn a_second_pod_is_admitted_by_the_access_modes_of_both() {
        for (mine, theirs, allowed) in [
            (false, false, true),
            (true, false, false),
            (false, true, false),
            (true, true, false),
        ] {
            let decision = decide(mine, &RW(), &[used_by("other", "7:1", theirs, RW())]);
            if allowed {
                assert_eq!(decision, JOINS);
            } else {
                let message = decision.unwrap_err();
                assert!(
                    message.contains("pod other (sandbox sandbox-1)"),
                    "{message}"
                );
                assert!(message.contains("ReadWriteOncePod"), "{message}");
            }
        }
    }

    #[test]
    fn a_second_sandbox_of_the_same_pod_is_admitted_in_each_mode() {
        assert_eq!(
            decide(true, &RW(), &[used_by("mine", "7:1", true, RW())]),
            JOINS
        );
    }

    #[test]
    fn the_first_user_gets_an_exclusive_mount() {
        assert_eq!(decide(true, &RW(), &[]), Ok(DeviceAccess::First));
        let mut ended = used_by("other", "7:1", true, RW());
        ended.users.clear();
        assert_eq!(decide(true, &RW(), &[ended]), Ok(DeviceAccess::First));
    }

    #[test]
    fn different_options_are_refused_for_each_pod() {
        for pod in ["mine", "other"] {
            for existing in [superblock(true, &[]), superblock(false, &["discard"])] {
                let message =
                    decide(false, &RW(), &[used_by(pod, "7:1", false, existing)]).unwrap_err();
                assert!(
                    message.contains("can't be changed to ext4 (rw)"),
                    "{message}"
                );
            }
        }
    }

    /// Read-only superblocks are made by the option `ro`, and by an early version also for each pod that only reads.
    #[test]
    fn a_pod_that_only_reads_joins_a_read_only_superblock() {
        let ro = superblock(true, &[]);
        for (existing, requested, only_reads, expected) in [
            (&ro, &RW(), true, Some(true)),
            (&ro, &RW(), false, None),
            (&RW(), &RW(), true, Some(false)),
            (&RW(), &ro, true, None),
            (&ro, &ro, false, Some(true)),
            (&superblock(true, &["discard"]), &RW(), true, None),
        ] {
            let request = OwnershipRequest {
                pod_uid: "mine",
                exclusive: false,
                superblock: requested,
                only_reads,
                backing: &"7:1".parse().unwrap(),
            };
            let records = [used_by("other", "7:1", false, existing.clone())];
            let access = decide_access(&request, &records, Sharing::Allow).ok();
            let expected = expected.map(|read_only| DeviceAccess::Joins { read_only });
            assert_eq!(access, expected, "{existing} {requested} {only_reads}");
        }
    }

    /// A volume is mounted with one label at a time (KEP-1710).
    #[test]
    fn a_different_selinux_label_is_refused_with_both_labels() {
        let (one, other) = ("context=u:r:t:s0:c1,c2", "context=u:r:t:s0:c3,c4");
        let decide = |existing: &[&str], requested: &[&str]| {
            let existing = superblock(false, existing);
            let owner = used_by("other", "7:1", false, existing);
            decide(false, &superblock(false, requested), &[owner])
        };
        assert_eq!(decide(&[one, "discard"], &[one, "discard"]), JOINS);
        for (existing, requested, expected) in [
            (
                &[one][..],
                &[other][..],
                "with the SELinux label u:r:t:s0:c1,c2, and",
            ),
            (
                &[],
                &[one],
                "with no SELinux label, and it can't be mounted with the SELinux label u",
            ),
            (
                &[one],
                &[],
                "with the SELinux label u:r:t:s0:c1,c2, and it can't be mounted with no",
            ),
        ] {
            let message = decide(existing, requested).unwrap_err();
            assert!(
                message.contains("pod other") && message.contains(expected),
                "{message}"
            );
            assert!(
                message.contains("hint: ") && message.contains("KEP-1710"),
                "{message}"
            );
        }
        let message = decide(&[one, "discard"], &[other]).unwrap_err();
        assert!(
            message.contains("can't be changed to ext4 (rw,context="),
            "{message}"
        );
    }

    #[test]
    fn a_second_device_with_the_same_data_is_refused_for_each_pod() {
        for pod in ["mine", "other"] {
            let message = decide(false, &RW(), &[used_by(pod, "7:2", false, RW())]).unwrap_err();
            assert!(
                message.contains("through device 7:2 (this volume's device is 7:1)"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_container_without_a_pod_is_named_as_the_owner() {
        let mut other = used_by("other", "7:1", true, superblock(false, &["context=l"]));
        other.users[0].kind = UserKind::Container;
        for exclusive in [true, false] {
            let requested = superblock(false, &["context=m"]);
            other.exclusive = exclusive;
            let message = decide(exclusive, &requested, std::slice::from_ref(&other)).unwrap_err();
            assert!(message.contains("container sandbox-1 "), "{message}");
            let hint = message.split_once("hint: ").unwrap().1;
            assert!(
                hint.contains("container") && !hint.contains("pod"),
                "{message}"
            );
        }
    }

    #[test]
    fn denied_sharing_refuses_other_pods_only() {
        let (backing, rw) = (&"7:1".parse().unwrap(), RW());
        let request = OwnershipRequest {
            pod_uid: "mine",
            exclusive: false,
            superblock: &rw,
            only_reads: false,
            backing,
        };
        let other = [used_by("other", "7:1", false, RW())];
        assert!(matches!(
            decide_access(&request, &other, Sharing::Deny),
            Err(Conflict::SharingDenied(_))
        ));
        let mine = [used_by("mine", "7:1", false, RW())];
        assert_eq!(
            decide_access(&request, &mine, Sharing::Deny),
            Ok(DeviceAccess::Joins { read_only: false })
        );
    }
}

//! Whether a volume may be mounted for a pod while others have its device (KEP-2857, "Potential
//! data corruption for co-scheduled pods"; KEP-2485).

use crate::config::Sharing;
use crate::record::{Superblock, User, VolumeRecord};
use crust_blockfs::DeviceNumber;

/// A pod's wish to have a volume.
#[derive(Debug)]
pub struct Claim<'a> {
    /// The pod.
    pub pod_uid: &'a str,
    /// The volume's access mode forbids a second pod.
    pub exclusive: bool,
    /// The options that the superblock is to be created with.
    pub superblock: &'a Superblock,
    /// The pod only reads: a read-only superblock that is there will do.
    pub only_reads: bool,
    /// The volume's device.
    pub device: DeviceNumber,
}

/// How a claim is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Nobody has the device: the mount must be exclusive.
    First,
    /// The superblock exists already, with the same options.
    Joins {
        /// The superblock that exists is read-only.
        read_only: bool,
    },
}

impl Admission {
    /// Whether the mount joins a superblock that is read-only.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Joins { read_only: true })
    }
}

/// The reason why a claim is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Conflict {
    /// `SINGLE_NODE_SINGLE_WRITER`.
    #[error(
        "its access mode SINGLE_NODE_SINGLE_WRITER (ReadWriteOncePod) allows one pod or container, and {0} has it; hint: wait until that {noun} has ended", noun = .0.noun
    )]
    Exclusive(Holder),
    /// `shared = "deny"`.
    #[error(
        "{0} has it, and shared = \"deny\" in runcrust's configuration allows one pod or container a volume; hint: wait until that {noun} has ended", noun = .0.noun
    )]
    SharingDenied(Holder),
    /// One superblock has one set of options; a second mount's would be ignored silently.
    #[error(
        "{holder} has it mounted as {present}, which can't be changed to {wanted} at the same time; hint: stage the volume with the same file system and options for all of its users, or end that {noun} first", noun = .holder.noun
    )]
    Superblock {
        /// The present holder.
        holder: Holder,
        /// The superblock that is mounted.
        present: String,
        /// The superblock that was to be mounted.
        wanted: String,
    },
    /// A superblock has one label for all its files, or those on the disk.
    #[error(
        "{holder} has it mounted with {present}, and it was to be mounted with {wanted} now; hint: {noun}s that share a volume need the same SELinux level{level}", noun = holder.noun, level = level(holder.noun)
    )]
    Label {
        /// The present holder.
        holder: Holder,
        /// With which.
        present: Label,
        /// With which it was to be mounted now.
        wanted: Label,
    },
    /// Two block devices on the same data: two superblocks, and a broken file system.
    #[error(
        "{holder} has the same data through device {present} (this is {wanted}); hint: stage both volumes with the same device"
    )]
    Alias {
        /// The present holder.
        holder: Holder,
        /// Through which device.
        present: DeviceNumber,
        /// Through which it was to be mounted now.
        wanted: DeviceNumber,
    },
}

/// A superblock's SELinux label, for a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Label(Option<String>);

impl Label {
    fn of(superblock: &Superblock) -> Self {
        Self(superblock.label().map(str::to_owned))
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(label) => write!(formatter, "the SELinux label {label}"),
            None => formatter.write_str("no SELinux label"),
        }
    }
}

/// The pod or container that holds a volume, for a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    owner: String,
    noun: &'static str,
}

impl Holder {
    fn of(user: &User) -> Self {
        Self {
            owner: user.owner(),
            noun: user.owner_noun(),
        }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.owner)
    }
}

/// Returns the setting that holds a pod's level, or the option of podman and docker for a container's.
fn level(noun: &str) -> &'static str {
    if noun == "pod" {
        ": securityContext.seLinuxOptions.level (KEP-1710)"
    } else {
        ": --security-opt label=level:LEVEL"
    }
}

/// Decides on a claim. `owners` are the records, the dead left out, of volumes whose device is the
/// claimed one or leads to the same data; the claimed volume's own may be among them.
pub fn admit(
    claim: &Claim<'_>,
    owners: &[VolumeRecord],
    sharing: Sharing,
) -> Result<Admission, Conflict> {
    let mut admission = Admission::First;
    for record in owners {
        let other_pod = record
            .users
            .iter()
            .find(|user| user.pod_uid != claim.pod_uid);
        let Some(user) = other_pod.or(record.users.first()) else {
            continue;
        };
        let holder = Holder::of(user);
        if record.device != claim.device {
            let (present, wanted) = (record.device, claim.device);
            return Err(Conflict::Alias {
                holder,
                present,
                wanted,
            });
        }
        if other_pod.is_some() && (claim.exclusive || record.exclusive) {
            return Err(Conflict::Exclusive(holder));
        }
        if other_pod.is_some() && sharing == Sharing::Deny {
            return Err(Conflict::SharingDenied(holder));
        }
        let present = &record.superblock;
        let wanted = claim
            .superblock
            .read_as(claim.only_reads && present.read_only);
        if present.differs_in_label_alone(&wanted) {
            let (present, wanted) = (Label::of(present), Label::of(&wanted));
            return Err(Conflict::Label {
                holder,
                present,
                wanted,
            });
        }
        if *present != wanted {
            let (present, wanted) = (present.to_string(), wanted.to_string());
            return Err(Conflict::Superblock {
                holder,
                present,
                wanted,
            });
        }
        let read_only = present.read_only;
        admission = Admission::Joins { read_only };
    }
    Ok(admission)
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
    const JOINS: Result<Admission, String> = Ok(Admission::Joins { read_only: false });

    fn superblock(read_only: bool, options: &[&str]) -> Superblock {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Superblock {
            fstype: "ext4".into(),
            options,
            read_only,
        }
    }

    fn owner(pod_uid: &str, device: &str, exclusive: bool, superblock: Superblock) -> VolumeRecord {
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
            others: Vec::new(),
        };
        VolumeRecord {
            version: Version,
            device: device.parse().unwrap(),
            superblock,
            exclusive,
            prepared_for: vec![],
            users: vec![user],
        }
    }

    fn decide(
        exclusive: bool,
        wanted: &Superblock,
        owners: &[VolumeRecord],
    ) -> Result<Admission, String> {
        let device = "7:1".parse().unwrap();
        let claim = Claim {
            pod_uid: "mine",
            exclusive,
            superblock: wanted,
            only_reads: false,
            device,
        };
        admit(&claim, owners, Sharing::Allow).map_err(|conflict| conflict.to_string())
    }

    #[test]
    fn the_access_modes_table_for_a_second_pod() {
        for (mine, theirs, allowed) in [
            (false, false, true),
            (true, false, false),
            (false, true, false),
            (true, true, false),
        ] {
            let decision = decide(mine, &RW(), &[owner("other", "7:1", theirs, RW())]);
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
    fn the_pods_own_second_sandbox_joins_whatever_the_mode() {
        assert_eq!(
            decide(true, &RW(), &[owner("mine", "7:1", true, RW())]),
            JOINS
        );
    }

    #[test]
    fn nobody_else_means_an_exclusive_mount() {
        assert_eq!(decide(true, &RW(), &[]), Ok(Admission::First));
        let mut ended = owner("other", "7:1", true, RW());
        ended.users.clear();
        assert_eq!(decide(true, &RW(), &[ended]), Ok(Admission::First));
    }

    #[test]
    fn other_options_or_ro_beside_rw_are_refused_for_any_pod() {
        for pod in ["mine", "other"] {
            for present in [superblock(true, &[]), superblock(false, &["discard"])] {
                let message =
                    decide(false, &RW(), &[owner(pod, "7:1", false, present)]).unwrap_err();
                assert!(
                    message.contains("can't be changed to ext4 (rw)"),
                    "{message}"
                );
            }
        }
    }

    /// An earlier version made one for each pod that only reads; the option `ro` makes one for all pods.
    #[test]
    fn a_pod_that_only_reads_takes_a_read_only_superblock() {
        let ro = superblock(true, &[]);
        for (present, wanted, only_reads, expected) in [
            (&ro, &RW(), true, Some(true)),
            (&ro, &RW(), false, None),
            (&RW(), &RW(), true, Some(false)),
            (&RW(), &ro, true, None),
            (&ro, &ro, false, Some(true)),
            (&superblock(true, &["discard"]), &RW(), true, None),
        ] {
            let claim = Claim {
                pod_uid: "mine",
                exclusive: false,
                superblock: wanted,
                only_reads,
                device: "7:1".parse().unwrap(),
            };
            let owners = [owner("other", "7:1", false, present.clone())];
            let admission = admit(&claim, &owners, Sharing::Allow).ok();
            let expected = expected.map(|read_only| Admission::Joins { read_only });
            assert_eq!(admission, expected, "{present} {wanted} {only_reads}");
        }
    }

    /// KEP-1710: a volume is mounted with one label at a time.
    #[test]
    fn another_selinux_label_is_refused_by_name() {
        let (one, other) = ("context=u:r:t:s0:c1,c2", "context=u:r:t:s0:c3,c4");
        let decide = |present: &[&str], wanted: &[&str]| {
            let present = superblock(false, present);
            let owner = owner("other", "7:1", false, present);
            decide(false, &superblock(false, wanted), &[owner])
        };
        assert_eq!(decide(&[one, "discard"], &[one, "discard"]), JOINS);
        for (present, wanted, expected) in [
            (
                &[one][..],
                &[other][..],
                "with the SELinux label u:r:t:s0:c1,c2, and",
            ),
            (
                &[],
                &[one],
                "with no SELinux label, and it was to be mounted with the SELinux label u",
            ),
            (
                &[one],
                &[],
                "with the SELinux label u:r:t:s0:c1,c2, and it was to be mounted with no",
            ),
        ] {
            let message = decide(present, wanted).unwrap_err();
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
    fn a_second_device_on_the_same_data_is_refused_for_any_pod() {
        for pod in ["mine", "other"] {
            let message = decide(false, &RW(), &[owner(pod, "7:2", false, RW())]).unwrap_err();
            assert!(
                message.contains("through device 7:2 (this is 7:1)"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_container_that_is_in_no_pod_is_named_as_one() {
        let mut other = owner("other", "7:1", true, superblock(false, &["context=l"]));
        other.users[0].kind = UserKind::Container;
        for exclusive in [true, false] {
            let wanted = superblock(false, &["context=m"]);
            other.exclusive = exclusive;
            let message = decide(exclusive, &wanted, std::slice::from_ref(&other)).unwrap_err();
            assert!(message.contains("container sandbox-1 has it"), "{message}");
            let hint = message.split_once("hint: ").unwrap().1;
            assert!(
                hint.contains("container") && !hint.contains("pod"),
                "{message}"
            );
        }
    }

    #[test]
    fn strict_testbeds_deny_the_second_pod_only() {
        let (device, rw) = ("7:1".parse().unwrap(), RW());
        let claim = Claim {
            pod_uid: "mine",
            exclusive: false,
            superblock: &rw,
            only_reads: false,
            device,
        };
        let other = [owner("other", "7:1", false, RW())];
        assert!(matches!(
            admit(&claim, &other, Sharing::Deny),
            Err(Conflict::SharingDenied(_))
        ));
        let mine = [owner("mine", "7:1", false, RW())];
        assert_eq!(
            admit(&claim, &mine, Sharing::Deny),
            Ok(Admission::Joins { read_only: false })
        );
    }
}

//! The record of a volume's users, `runcrust.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backing::Backing;
use crate::process::Process;
use crust_blockfs::DeviceNumber;
use crust_blockfs::mountinfo::Mount;

/// The name of the file in an entry.
pub const RECORD_FILE: &str = "runcrust.json";

/// The users of a volume, and the options of its superblock. A volume that isn't in use has no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    pub version: Version<1>,
    /// The device or share that the volume's file system is on.
    #[serde(rename = "device")]
    pub backing: Backing,
    /// The superblocks of a share that are mounted for the users. A device has one superblock, with its own number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superblocks: Vec<DeviceNumber>,
    /// The fsGroup that the server of a share has refused to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_fs_group: Option<u32>,
    pub superblock: Superblock,
    /// Whether the volume's access mode forbids a second pod.
    pub exclusive: bool,
    /// The UIDs of the pods that fsGroup was applied for. It is applied once per pod, before the pod's containers run.
    pub prepared_for: Vec<String>,
    /// The sandboxes that have the volume mounted, their containers that use it, and containers that are being created.
    pub users: Vec<User>,
}

/// The options that a superblock was created with. If the same device is mounted again with other options, the kernel
/// ignores them. runcrust therefore compares the options and refuses a mount with different ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Superblock {
    pub fstype: String,
    /// The superblock options, sorted, without the attributes of a mount.
    pub options: Vec<String>,
    pub read_only: bool,
}

impl Superblock {
    /// Returns the SELinux label of all files; `None` if the superblock was mounted without one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        let mut options = self.options.iter();
        options.find_map(|option| option.strip_prefix("context="))
    }

    /// Returns a copy, which is read-only if `read_only` is true.
    #[must_use]
    pub(crate) fn read_only_if(&self, read_only: bool) -> Self {
        Self {
            read_only: self.read_only || read_only,
            ..self.clone()
        }
    }

    /// Returns whether the superblocks differ, and are equal apart from the label.
    #[must_use]
    pub(crate) fn differs_only_in_label(&self, other: &Self) -> bool {
        let without_label = |superblock: &Self| {
            let mut superblock = superblock.clone();
            let options = &mut superblock.options;
            options.retain(|option| !option.starts_with("context="));
            superblock
        };
        self != other && without_label(self) == without_label(other)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UserKind {
    /// A pod's sandbox, in which the volume is mounted.
    Sandbox,
    Container,
    /// A container that is being created. Its process is the one that runs the create.
    Pending,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    pub kind: UserKind,
    /// The id of the container or sandbox.
    pub id: String,
    /// The id of the sandbox that the container belongs to. A sandbox, and a container without one, have their own id
    /// here.
    pub sandbox: String,
    pub pod_uid: String,
    /// The first process of the container; for a pending user, the process that creates the container.
    pub process: Process,
    /// The mounts of the volume in the container. A sandbox has none here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<UserMount>,
    /// For a pending user: the ids of other mounts of the device that existed in the delegate's mount namespace before
    /// the create.
    #[serde(default, rename = "others", skip_serializing_if = "Vec::is_empty")]
    pub other_mounts: Vec<u32>,
}

impl std::fmt::Display for User {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_in_a_pod() && self.kind != UserKind::Sandbox {
            write!(formatter, "container {} of ", self.id)?;
        }
        formatter.write_str(&self.owner())?;
        if self.kind == UserKind::Pending {
            formatter.write_str(", which is being created")?;
        }
        Ok(())
    }
}

impl User {
    /// Returns the owner of the volume for messages: `pod U (sandbox S)`, or `container C` for a container without a
    /// pod (podman, docker, buildah, a plain bundle).
    #[must_use]
    pub fn owner(&self) -> String {
        if self.is_in_a_pod() {
            format!("pod {} (sandbox {})", self.pod_uid, self.sandbox)
        } else {
            format!("container {}", self.id)
        }
    }

    /// Returns the noun for [`Self::owner`]: `pod` or `container`.
    #[must_use]
    pub fn owner_noun(&self) -> &'static str {
        if self.is_in_a_pod() {
            "pod"
        } else {
            "container"
        }
    }

    /// Returns whether the user belongs to a pod. Only a sandbox, or a container without a pod, has its own id as
    /// `sandbox`.
    fn is_in_a_pod(&self) -> bool {
        self.kind == UserKind::Sandbox || self.sandbox != self.id
    }

    fn is(&self, kind: UserKind, id: &str) -> bool {
        self.kind == kind && self.id == id
    }
}

/// One mount of a volume in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserMount {
    /// The path in the container.
    pub destination: PathBuf,
    /// The source in the config, before it was rewritten.
    pub source: String,
}

impl VolumeRecord {
    /// Removes the users that have ended, and the pods without users from `prepared_for`.
    pub fn retain_live(&mut self, is_alive: impl Fn(&Process) -> bool) {
        self.users.retain(|user| is_alive(&user.process));
        let users = &self.users;
        self.prepared_for
            .retain(|pod| users.iter().any(|user| user.pod_uid == *pod));
        if users.is_empty() {
            // The kernel reuses the numbers.
            self.superblocks.clear();
            self.refused_fs_group = None;
        }
    }

    /// Returns whether a mount has a superblock of the volume. Other volumes can have the same one if they are shares.
    #[must_use]
    pub fn has_superblock_of(&self, mount: &Mount) -> bool {
        self.backing.has_superblock_of(mount, &self.superblocks)
    }

    /// Returns whether a mount is certainly one of the volume or of a directory in it.
    #[must_use]
    pub fn is_mount(&self, mount: &Mount) -> bool {
        self.has_superblock_of(mount) && self.backing.is_source_of(mount)
    }

    /// Returns the mounts of the volume in a user's mount table, first those of its root. If symbolic links on the server
    /// lead to a share, its mounts show another path; then those with its superblock are returned.
    #[must_use]
    pub fn find_mounts<'m>(&self, mounts: &'m [Mount]) -> Vec<&'m Mount> {
        let mut found: Vec<&Mount> = mounts
            .iter()
            .filter(|it| self.has_superblock_of(it))
            .collect();
        if self.backing.has_one_superblock() {
            return found;
        }
        if found.iter().any(|mount| self.backing.is_source_of(mount)) {
            found.retain(|mount| self.backing.is_source_of(mount));
        }
        found.sort_by_key(|mount| !self.backing.may_be_mounted_by(mount));
        found
    }

    /// Records the superblock of a share that is mounted for a user. Those of a device needn't be recorded.
    pub fn add_superblock(&mut self, number: DeviceNumber) {
        if !self.backing.has_one_superblock() && !self.superblocks.contains(&number) {
            self.superblocks.push(number);
        }
    }

    /// Records that fsGroup was applied for a pod. Returns whether that was recorded before.
    pub fn mark_prepared(&mut self, pod_uid: &str) -> bool {
        let prepared = self.prepared_for.iter().any(|pod| pod == pod_uid);
        if !prepared {
            self.prepared_for.push(pod_uid.to_owned());
        }
        prepared
    }

    #[must_use]
    pub fn user(&self, kind: UserKind, id: &str) -> Option<&User> {
        self.users.iter().find(|user| user.is(kind, id))
    }

    /// Adds a user. Replaces one of the same kind with the same id.
    pub fn add(&mut self, user: User) {
        self.remove(user.kind, &user.id);
        self.users.push(user);
    }

    pub fn remove(&mut self, kind: UserKind, id: &str) {
        self.users.retain(|user| !user.is(kind, id));
    }

    /// Turns a pending user into a container, because it exists now. `process` is its first process. Returns false if
    /// there is no pending user with this id.
    pub fn confirm(&mut self, id: &str, process: Process) -> bool {
        let mut users = self.users.iter_mut();
        let Some(user) = users.find(|user| user.is(UserKind::Pending, id)) else {
            return false;
        };
        user.kind = UserKind::Container;
        user.process = process;
        user.other_mounts.clear();
        true
    }
}

/// The version of a record format. Deserializing another version fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Version<const N: u64>;

impl<const N: u64> Serialize for Version<N> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(N)
    }
}

impl<'de, const N: u64> Deserialize<'de> for Version<N> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let version = u64::deserialize(deserializer)?;
        if version == N {
            return Ok(Self);
        }
        let message = format!("version {version} is unknown, {N} is the only one known");
        Err(serde::de::Error::custom(message))
    }
}

/// Serializes values as strings, in their `Display` form.
pub(crate) mod as_string {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use crust_blockfs::mountinfo;

    use super::*;

    fn process(pid: i32) -> Process {
        Process {
            pid,
            start_time: 1,
            boot_id: "b".into(),
            pid_namespace: None,
        }
    }

    fn user(kind: UserKind, id: &str, pod_uid: &str, pid: i32) -> User {
        let process = process(pid);
        let (id, sandbox, pod_uid) = (id.to_owned(), "s".to_owned(), pod_uid.to_owned());
        User {
            kind,
            id,
            sandbox,
            pod_uid,
            process,
            mounts: Vec::new(),
            other_mounts: Vec::new(),
        }
    }

    fn record() -> VolumeRecord {
        VolumeRecord {
            version: Version,
            backing: "7:3".parse().unwrap(),
            superblocks: Vec::new(),
            refused_fs_group: None,
            superblock: Superblock {
                fstype: "ext4".into(),
                options: vec![],
                read_only: false,
            },
            exclusive: false,
            prepared_for: vec!["pod-1".into(), "pod-2".into()],
            users: vec![
                user(UserKind::Sandbox, "s", "pod-1", 1),
                user(UserKind::Pending, "c", "pod-2", 2),
            ],
        }
    }

    #[test]
    fn ended_users_are_removed_with_their_pods() {
        let mut record = record();
        record.retain_live(|process| process.pid == 1);
        assert_eq!(record.users.len(), 1);
        assert_eq!(record.prepared_for, ["pod-1"]);
        record.retain_live(|_| false);
        assert!(record.users.is_empty() && record.prepared_for.is_empty());
    }

    #[test]
    fn mounts_of_shares_with_the_same_superblock_are_told_apart() {
        let record = VolumeRecord {
            backing: "srv:/export/a".parse().unwrap(),
            superblocks: vec![DeviceNumber::new(0, 42)],
            ..record()
        };
        let mount_points = |table: &str| -> Vec<String> {
            let mounts = mountinfo::parse(table.as_bytes()).unwrap();
            let found = record.find_mounts(&mounts).into_iter();
            found
                .map(|mount| mount.mount_point.display().to_string())
                .collect()
        };
        let other = "9 1 0:42 / /other rw - nfs4 srv:/export/b rw\n";
        let below = "9 1 0:42 / /below rw - nfs4 srv:/export/a/b rw\n";
        let root = "9 1 0:42 / /root rw - nfs4 srv:/export/a rw\n";
        assert_eq!(
            mount_points(&[other, below, root].concat()),
            ["/root", "/below"]
        );
        // A symbolic link on the server leads to the share.
        let linked = "9 1 0:42 / /linked rw - nfs4 srv:/disks/1 rw\n";
        let foreign = "9 1 0:43 / /foreign rw - nfs4 srv:/disks/1 rw\n";
        assert_eq!(mount_points(&[foreign, linked].concat()), ["/linked"]);
    }

    #[test]
    fn a_user_without_a_pod_is_named_as_a_container() {
        let own = |kind| User {
            sandbox: "c".into(),
            ..user(kind, "c", "c", 1)
        };
        for (user, expected, noun) in [
            (
                user(UserKind::Sandbox, "s", "p", 1),
                "pod p (sandbox s)",
                "pod",
            ),
            (
                user(UserKind::Container, "c", "p", 1),
                "container c of pod p (sandbox s)",
                "pod",
            ),
            (
                user(UserKind::Pending, "c", "p", 1),
                "container c of pod p (sandbox s), which is being created",
                "pod",
            ),
            (own(UserKind::Container), "container c", "container"),
            (
                own(UserKind::Pending),
                "container c, which is being created",
                "container",
            ),
        ] {
            assert_eq!(user.to_string(), expected);
            assert_eq!(user.owner_noun(), noun, "{expected}");
        }
    }

    #[test]
    fn only_a_pending_user_is_confirmed() {
        let mut record = record();
        assert!(!record.confirm("s", process(9)), "a sandbox isn't pending");
        assert!(record.confirm("c", process(7)));
        assert!(!record.confirm("c", process(8)), "it is confirmed already");
        let kinds = record
            .users
            .iter()
            .map(|user| (user.kind, user.process.pid));
        assert_eq!(
            kinds.collect::<Vec<_>>(),
            [(UserKind::Sandbox, 1), (UserKind::Container, 7)]
        );
    }

    #[test]
    fn a_pending_user_does_not_replace_its_container() {
        let mut record = record();
        record.add(user(UserKind::Container, "c", "pod-2", 7));
        record.add(user(UserKind::Pending, "c", "pod-2", 8));
        assert_eq!(record.users.len(), 3);
        record.remove(UserKind::Pending, "c");
        assert!(record.user(UserKind::Container, "c").is_some());
    }

    #[test]
    fn a_record_is_read_back_and_a_later_version_is_not() {
        let text = serde_json::to_string(&record()).unwrap();
        assert_eq!(
            serde_json::from_str::<VolumeRecord>(&text).unwrap(),
            record()
        );
        let later = text.replace("\"version\":1", "\"version\":2");
        let error = serde_json::from_str::<VolumeRecord>(&later)
            .unwrap_err()
            .to_string();
        assert!(error.contains("version 2 is unknown"), "{error}");
    }
}

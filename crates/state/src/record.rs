//! `runcrust.json`: who uses a volume.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::process::Process;
use crust_blockfs::DeviceNumber;

/// The file's name in an entry.
pub const RECORD: &str = "runcrust.json";

/// The users of a volume, and what it was mounted with. A volume without users has no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// 1.
    pub version: Version<1>,
    /// The block device; another volume on it is another pod's share of the same superblock.
    pub device: DeviceNumber,
    /// The options that the superblock was created with.
    pub superblock: Superblock,
    /// `metadata.accessMode` forbids a second pod.
    pub exclusive: bool,
    /// The pods (by uid) that fsGroup was applied for: it is done once per pod, and never under
    /// the hands of a workload that already runs.
    pub prepared_for: Vec<String>,
    /// Sandboxes that hold the mount, containers that got it from them, and containers that are
    /// being created.
    pub users: Vec<User>,
}

/// The options that a superblock was created with. A later mount of the same device with other options would succeed
/// and ignore them, so they are compared and the mount is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Superblock {
    /// The file system's name.
    pub fstype: String,
    /// Its own options (not the generic mount attributes), sorted.
    pub options: Vec<String>,
    /// Whether the superblock is read-only.
    pub read_only: bool,
}

impl Superblock {
    /// The SELinux label that all its files have, where it was mounted with one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        let mut options = self.options.iter();
        options.find_map(|option| option.strip_prefix("context="))
    }

    /// The same, made read-only where `read_only` says so.
    #[must_use]
    pub(crate) fn read_as(&self, read_only: bool) -> Self {
        Self {
            read_only: self.read_only || read_only,
            ..self.clone()
        }
    }

    /// Whether it is the same but for the label.
    #[must_use]
    pub(crate) fn differs_in_label_alone(&self, other: &Self) -> bool {
        let rest = |of: &Self| {
            let mut of = of.clone();
            of.options.retain(|option| !option.starts_with("context="));
            of
        };
        self != other && rest(self) == rest(other)
    }
}

/// The kind of a volume's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UserKind {
    /// A pod's sandbox: the volume is mounted in it.
    Sandbox,
    /// A container.
    Container,
    /// A container whose `create` runs: the process is the runtime's.
    Pending,
}

/// One user of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// The kind of user.
    pub kind: UserKind,
    /// The container's id; a sandbox is one too.
    pub id: String,
    /// The sandbox that the container belongs to; a sandbox belongs to itself.
    pub sandbox: String,
    /// The pod.
    pub pod_uid: String,
    /// Its first process, or the runtime's while it is pending.
    pub process: Process,
    /// The places where a container sees the volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<UserMount>,
    /// The ids of others' mounts of the device in the namespace that the delegate runs in, of a container whose
    /// `create` is running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<u32>,
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
    /// Whoever the volume belongs to while it is used, as a sentence names it: `pod U (sandbox S)`, or
    /// `container C` for one that is in no pod (podman, docker, buildah, a plain bundle).
    #[must_use]
    pub fn owner(&self) -> String {
        if self.is_in_a_pod() {
            format!("pod {} (sandbox {})", self.pod_uid, self.sandbox)
        } else {
            format!("container {}", self.id)
        }
    }

    /// The word for what [`owner`](Self::owner) names.
    #[must_use]
    pub fn owner_noun(&self) -> &'static str {
        if self.is_in_a_pod() {
            "pod"
        } else {
            "container"
        }
    }

    /// A sandbox belongs to itself, and so does a container without one.
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
    /// The mount's place in the container.
    pub destination: PathBuf,
    /// The mount's source as the caller gave it.
    pub source: String,
}

impl VolumeRecord {
    /// Forgets the users that live no more, and what only mattered for them.
    pub fn retain_live(&mut self, is_alive: impl Fn(&Process) -> bool) {
        self.users.retain(|user| is_alive(&user.process));
        let users = &self.users;
        self.prepared_for
            .retain(|pod| users.iter().any(|user| user.pod_uid == *pod));
    }

    /// Says that the volume is prepared for a pod; true if it was before.
    pub fn mark_prepared(&mut self, pod_uid: &str) -> bool {
        let prepared = self.prepared_for.iter().any(|pod| pod == pod_uid);
        if !prepared {
            self.prepared_for.push(pod_uid.to_owned());
        }
        prepared
    }

    /// The user of this kind with this id.
    #[must_use]
    pub fn user(&self, kind: UserKind, id: &str) -> Option<&User> {
        self.users.iter().find(|user| user.is(kind, id))
    }

    /// Adds a user, in place of one of the same kind and id.
    pub fn add(&mut self, user: User) {
        self.remove(user.kind, &user.id);
        self.users.push(user);
    }

    /// Removes the user of this kind with this id.
    pub fn remove(&mut self, kind: UserKind, id: &str) {
        self.users.retain(|user| !user.is(kind, id));
    }

    /// Makes an announced container a real user: it exists, and `process` is its first one. False
    /// if it wasn't announced.
    pub fn publish(&mut self, id: &str, process: Process) -> bool {
        let mut users = self.users.iter_mut();
        let Some(user) = users.find(|user| user.is(UserKind::Pending, id)) else {
            return false;
        };
        user.kind = UserKind::Container;
        user.process = process;
        user.others.clear();
        true
    }
}

/// A record's version: reading another one fails.
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

/// Values that read and write as their `Display` form.
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
            others: Vec::new(),
        }
    }

    fn record() -> VolumeRecord {
        VolumeRecord {
            version: Version,
            device: "7:3".parse().unwrap(),
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
    fn the_dead_are_forgotten_with_what_was_prepared_for_them() {
        let mut record = record();
        record.retain_live(|process| process.pid == 1);
        assert_eq!(record.users.len(), 1);
        assert_eq!(record.prepared_for, ["pod-1"]);
        record.retain_live(|_| false);
        assert!(record.users.is_empty() && record.prepared_for.is_empty());
    }

    #[test]
    fn a_sentence_names_pods_only_where_there_are_some() {
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
    fn publishing_makes_the_announced_user_real_and_no_other() {
        let mut record = record();
        assert!(
            !record.publish("s", process(9)),
            "a sandbox isn't announced"
        );
        assert!(record.publish("c", process(7)));
        assert!(!record.publish("c", process(8)), "once");
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
    fn a_second_announcement_leaves_the_container_of_that_id_alone() {
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

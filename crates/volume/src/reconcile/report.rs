//! The report of a reconciliation: each item of state on disk, and whether it was removed, left or failed.

use std::fmt;
use std::path::PathBuf;

use crust_blockfs::DeviceNumber;
use crust_state::TargetPath;
use crust_state::record::User;

/// An item of state on disk that may be stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateItem {
    /// The record of a bundle, by its config; of one that can't be read, the record itself.
    Bundle(PathBuf),
    /// The record of a sandbox; of one that can't be read nobody knows the pod.
    Sandbox {
        /// Its id.
        id: String,
        /// Its pod.
        pod_uid: Option<String>,
    },
    /// A user on a volume's record.
    User {
        /// The volume.
        volume: TargetPath,
        /// The user.
        user: User,
    },
    /// A volume's record of its users, and its `runtime-cli`.
    Record(TargetPath),
    /// The copy of a volume's record that doesn't count, and differs from the other.
    Copy(TargetPath),
    /// A `runtime-cli` without a record.
    RuntimeCli {
        /// The volume.
        volume: TargetPath,
        /// The program that it names.
        cli: PathBuf,
    },
    /// A volume on the list of a device's.
    Owner {
        /// The device.
        device: DeviceNumber,
        /// The volume; none of a list that can't be read.
        volume: Option<TargetPath>,
    },
    /// A volume's entry for its resolved path, without the entry for the given one.
    Half(TargetPath),
    /// All that is staged of a volume.
    Volume(TargetPath),
    /// An entry that can't be understood.
    Entry(PathBuf),
    /// A temporary file or directory.
    Leftover(PathBuf),
    /// A directory that can't be looked into, or the lock of what is in it.
    Directory(PathBuf),
}

impl StateItem {
    /// One word, for programs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Bundle(_) => "bundle",
            Self::Sandbox { .. } => "sandbox",
            Self::User { .. } => "user",
            Self::Record(_) => "record",
            Self::Copy(_) => "copy",
            Self::RuntimeCli { .. } => "runtime-cli",
            Self::Owner { .. } => "owner",
            Self::Half(_) => "half",
            Self::Volume(_) => "volume",
            Self::Entry(_) => "entry",
            Self::Leftover(_) => "leftover",
            Self::Directory(_) => "directory",
        }
    }

    /// The volume that it is of.
    #[must_use]
    pub const fn volume(&self) -> Option<&TargetPath> {
        match self {
            Self::User { volume, .. }
            | Self::Record(volume)
            | Self::Copy(volume)
            | Self::RuntimeCli { volume, .. }
            | Self::Half(volume)
            | Self::Volume(volume) => Some(volume),
            Self::Owner { volume, .. } => volume.as_ref(),
            _ => None,
        }
    }
}

impl fmt::Display for StateItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bundle(config) => write!(f, "record of bundle {}", config.display()),
            Self::Sandbox { id, pod_uid: None } => write!(f, "record of sandbox {id}"),
            Self::Sandbox {
                id,
                pod_uid: Some(pod),
            } => write!(f, "record of sandbox {id} of pod {pod}"),
            Self::User { volume, user } => write!(f, "user of volume {volume}: {user}"),
            Self::Record(volume) => write!(f, "record of volume {volume}, and its runtime-cli"),
            Self::Copy(volume) => write!(f, "outdated copy of the record of volume {volume}"),
            Self::RuntimeCli { volume, .. } => write!(f, "runtime-cli of volume {volume}"),
            Self::Owner {
                device,
                volume: Some(volume),
            } => write!(f, "owner of device {device}: volume {volume}"),
            Self::Owner {
                device,
                volume: None,
            } => write!(f, "owners of device {device}"),
            Self::Half(volume) => write!(f, "half of what was staged of volume {volume}"),
            Self::Volume(volume) => write!(f, "what is staged of volume {volume}"),
            Self::Entry(path) => write!(f, "entry {}", path.display()),
            Self::Leftover(path) | Self::Directory(path) => path.display().fmt(f),
        }
    }
}

/// The verdict about an item that isn't in use for certain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is stale, and why.
    Remove(String),
    /// It may be in use, and why that is unknown.
    Leave(String),
}

/// An item, and why it was removed or left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemReport {
    /// The item.
    pub item: StateItem,
    /// The reason.
    pub reason: String,
}

/// The report of a reconciliation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ReconcileReport {
    /// Items that were removed or, in a dry run, would be.
    pub removed: Vec<ItemReport>,
    /// Items that were left because they may be in use.
    pub left: Vec<ItemReport>,
    /// Stale items that couldn't be removed, and items that couldn't be read.
    pub failed: Vec<ItemReport>,
}

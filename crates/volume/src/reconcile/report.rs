//! The report of a reconciliation: each item of state on disk, and whether it was removed, left or failed.

use std::fmt;
use std::path::PathBuf;

use crust_state::record::User;
use crust_state::{BackingKey, TargetPath};

/// An item of state on disk that may be stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateItem {
    /// The record of a bundle, with the path of the bundle's config, or the path of the record if it is unreadable.
    Bundle(PathBuf),
    /// The record of a sandbox.
    Sandbox {
        id: String,
        /// `None` if the record is unreadable.
        pod_uid: Option<String>,
    },
    /// A user in a volume's record.
    User { volume: TargetPath, user: User },
    /// The requests of a killed container to a file server.
    Requests { volume: TargetPath, user: User },
    /// A volume's record of its users and its `runtime-cli`.
    Record(TargetPath),
    /// The copy of a volume's record in its second entry, which differs from the authoritative one.
    Copy(TargetPath),
    /// A `runtime-cli` without a record.
    RuntimeCli {
        volume: TargetPath,
        /// The program that it names.
        cli: PathBuf,
    },
    /// A volume in a device's list of owners.
    Owner {
        backing: BackingKey,
        /// `None` if the list is unreadable.
        volume: Option<TargetPath>,
    },
    /// A volume's entry for its resolved path, if the entry for the target path is missing.
    Half(TargetPath),
    /// All entries of a volume.
    Volume(TargetPath),
    /// An entry whose target path is unknown.
    Entry(PathBuf),
    /// A temporary file or directory, or a lock.
    Leftover(PathBuf),
    /// A directory that can't be read or locked.
    Directory(PathBuf),
}

impl StateItem {
    /// Returns the item's kind as one word, for programs.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Bundle(_) => "bundle",
            Self::Sandbox { .. } => "sandbox",
            Self::User { .. } => "user",
            Self::Requests { .. } => "requests",
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

    /// Returns the volume that the item belongs to; `None` if it belongs to none or that is unknown.
    #[must_use]
    pub const fn volume(&self) -> Option<&TargetPath> {
        match self {
            Self::User { volume, .. }
            | Self::Requests { volume, .. }
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
            Self::Requests { volume, user } => {
                write!(f, "requests on volume {volume} of {user}")
            }
            Self::Record(volume) => write!(f, "record of volume {volume}, and its runtime-cli"),
            Self::Copy(volume) => write!(f, "outdated copy of the record of volume {volume}"),
            Self::RuntimeCli { volume, .. } => write!(f, "runtime-cli of volume {volume}"),
            Self::Owner {
                backing,
                volume: Some(volume),
            } => write!(f, "owner of {}: volume {volume}", backing.describe()),
            Self::Owner {
                backing,
                volume: None,
            } => write!(f, "owners of {}", backing.describe()),
            Self::Half(volume) => write!(f, "incomplete entries of volume {volume}"),
            Self::Volume(volume) => write!(f, "staged volume {volume}"),
            Self::Entry(path) => write!(f, "entry {}", path.display()),
            Self::Leftover(path) | Self::Directory(path) => path.display().fmt(f),
        }
    }
}

/// The decision about an item that isn't certain to be in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RemovalDecision {
    /// The item is stale. Contains the reason.
    Remove(String),
    /// It is unknown whether the item is in use. Contains the reason.
    Leave(String),
}

/// An item with the reason why it was removed or left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemReport {
    pub item: StateItem,
    pub reason: String,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ReconcileReport {
    /// Items that were removed or, in a dry run, would have been.
    pub removed: Vec<ItemReport>,
    /// Items that were left because they may be in use.
    pub left: Vec<ItemReport>,
    /// Stale items that couldn't be removed, and items that couldn't be read.
    pub failed: Vec<ItemReport>,
}

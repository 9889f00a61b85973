//! The life of a deferred volume: staged, mounted in a sandbox, published to containers, released, unstaged.
//!
//! `crust-blockfs` knows how to mount. This crate decides whether, and records which containers use what.
//!
//! Locks are taken in the order bundle, volume, device, owners, targets; those of the paths of one volume in the order
//! of their digests.
//!
//! | module | what it does |
//! |---|---|
//! | [`stage()`], [`unstage()`] | write a volume's entry in the crust directory, and remove it |
//! | [`staged`], [`needs`], [`ensure()`] | read what is staged, plan what a sandbox or container needs, and mount it |
//! | [`publish`], [`release`], [`reconcile()`] | record users, forget them, and remove stale state |
//! | [`stats`], [`resize()`], [`inspect()`], [`overviews`] | answer about volumes in use |
//! | [`sandbox`], [`attach`], [`rootfs`], [`namespace`] | enter the pod's sandbox, the delegate's namespace, a container that is being made |
//! | [`propagated`] | unmount copies of a volume that came out of a container |
//! | [`privileges`], [`capabilities`] | lower capabilities to what a step needs; tell what this host allows |

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod acquire;
mod admission;
pub mod attach;
pub mod bare_directory;
pub mod capabilities;
mod claim;
mod container_mount;
mod context;
mod difference;
mod ensure;
mod error;
mod find;
mod health;
mod inspect;
pub mod namespace;
mod new_mount;
mod overview;
mod owners;
mod plan;
mod preview;
pub mod privileges;
pub mod propagated;
mod reconcile;
mod resize;
pub mod rootfs;
pub mod sandbox;
mod stage;
mod superblock;
mod target_index;
mod tmpfs;
mod unstage;
mod users;
mod volume_mounts;

pub use admission::Room;
pub use container_mount::{mount_for_container, mount_reserved, reserve};
pub use context::{Context, Locked, lock, lock_found};
pub use difference::differences;
pub use ensure::{HostSandbox, ensure, views};
pub use error::{Code, Denied, VolumeError};
pub use find::{FindError, VolumeQuery, find_volume, parse_query};
pub use health::{Condition, HealthQuestion, Stats, check_health, stats};
pub use inspect::{BlockDevice, Inspection, SeenUser, inspect};
pub use overview::{Overview, VolumeState, overviews};
pub use plan::{Need, needs, staged};
pub use preview::{EntryLayout, MountPreview, PodAccess, PreviewPod, preview_mount};
pub use reconcile::{ItemReport, Mode, Report, StateItem, SweepError, reconcile, sweep};
pub use resize::resize;
pub use stage::{admit, stage, stage_at_once, stage_mounted};
pub use unstage::unstage;
pub use users::{
    NewContainer, announce, check_host, has_device, publish, release, release_sandbox, withdraw,
};

//! Lifecycle of a deferred volume: stage, mount in a sandbox, record users, release, unstage.
//!
//! `crust-blockfs` mounts file systems. This crate decides whether a volume may be mounted, and records which
//! containers use it.
//!
//! Locks are taken in the order bundle, volume, device, owners, targets. The locks of a volume's paths are taken in
//! the order of the paths' digests.
//!
//! | module | what it does |
//! |---|---|
//! | [`stage()`], [`unstage()`] | write a volume's entry in the crust directory, and remove it |
//! | [`read_staged`], [`volume_properties`], [`ensure_mounted()`] | read a staged volume, plan its mount, mount it |
//! | [`add_pending`], [`confirm`], [`release`], [`reconcile()`] | record users, remove them, and remove stale state |
//! | [`stats()`], [`resize()`], [`inspect()`], [`overviews`] | report on volumes and grow them |
//! | [`sandbox`], [`attach`], [`rootfs`], [`namespace`] | enter a sandbox, the transient namespace, a new container's root |
//! | [`propagated_mounts`] | unmount copies of a container's volumes that propagated to the host |
//! | [`privileges`] | lower this process's capabilities to those that an operation needs |
//! | [`host_features`] | report what this host supports |

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod acquire;
pub mod attach;
pub mod bare_directory;
mod container_mount;
mod context;
mod difference;
mod ensure;
mod error;
mod find;
mod health;
pub mod host_features;
mod inspect;
mod locked_paths;
mod mount_holder;
mod mount_source;
pub mod namespace;
mod new_mount;
mod overview;
mod owners;
mod plan;
mod preview;
pub mod privileges;
mod progress;
pub mod propagated_mounts;
mod reconcile;
mod resize;
pub mod rootfs;
pub mod sandbox;
mod server_wait;
mod share_health;
mod stage;
mod staging_checks;
mod stats;
mod superblock;
mod target_index;
mod thread;
mod tmpfs;
mod unstage;
mod users;
mod volume_mounts;

pub use container_mount::{mount_for_container, mount_reserved, reserve};
pub use context::{Context, LockedVolume, lock, lock_unchanged};
pub use difference::differences;
pub use ensure::{SandboxRequest, ensure_mounted, open_views};
pub use error::{GrpcCode, StagingError, VolumeError};
pub use find::{FindError, VolumeQuery, find_volume, parse_query};
pub use health::{HealthCheck, VolumeCondition, check_health};
pub use inspect::{
    BackingDescription, BlockDevice, Inspection, ObservedUser, ShareDescription, inspect,
};
pub use mount_holder::{HOLD_MOUNT, hold_mount};
pub use overview::{VolumeOverview, VolumeState, overviews};
pub use plan::{VolumeProperties, read_staged, volume_properties};
pub use preview::{EntryLayout, MountPreview, PreviewPod, VolumeAccess, preview_mount};
pub use reconcile::{
    ItemReport, ReconcileMode, ReconcileReport, StateItem, SweepError, reconcile, sweep,
};
pub use resize::resize;
pub use server_wait::Watchdog;
pub use stage::{check_staging, stage, stage_and_mount, stage_without_waiting};
pub use staging_checks::GrowthLimiter;
pub use stats::{VolumeStats, stats};
pub use unstage::unstage;
pub use users::{
    NewContainer, add_pending, check_host_mounts, confirm, release, release_sandbox, uses_device,
    withdraw,
};

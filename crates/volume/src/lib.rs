//! The life of a deferred volume: staged, mounted in a sandbox, published to containers, released, unstaged.
//!
//! `crust-blockfs` knows how to mount. This crate decides whether, and records which containers use what.
//!
//! Locks are taken in the order bundle, volume, device, owners, targets; those of the paths of one volume in the order
//! of their digests.
//!
//! | module | what it does |
//! |---|---|
//! | [`stage()`], [`unstage`] | write a volume's entry in the crust directory, and remove it |
//! | [`staged`], [`needs`], [`ensure()`] | read what is staged, plan what a sandbox or container needs, and mount it |
//! | [`publish`], [`release()`], [`reconcile()`] | record users, forget them, and put right what a killed process left |
//! | [`stats()`], [`resize()`], [`inspect()`], [`overviews`] | answer about volumes in use |
//! | [`sandbox`], [`attach`], [`rootfs`], [`namespace`] | enter the pod's sandbox, the delegate's namespace, a container that is being made |
//! | [`propagated`] | unmount copies of a volume that came out of a container |
//! | [`privileges`], [`capabilities`], [`trial`] | lower capabilities to what a step needs; tell what this host allows |

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod acquire;
mod admission;
pub mod attach;
pub mod bare;
pub mod capabilities;
mod claim;
mod context;
mod difference;
mod disk;
mod ensure;
mod error;
mod find;
mod health;
mod index;
mod inspect;
mod instance;
mod late;
mod mounted;
pub mod namespace;
mod outlook;
mod overview;
mod own;
mod owners;
mod plan;
pub mod privileges;
pub mod propagated;
mod reconcile;
mod release;
mod resize;
pub mod rootfs;
pub mod sandbox;
mod shown;
mod stage;
mod stats;
mod tmpfs;
pub mod trial;
mod users;

pub use admission::{Denied, Room, admit};
pub use context::{Context, Locked, lock, lock_found};
pub use difference::differences;
pub use ensure::{Host, ensure, views};
pub use error::{Code, VolumeError};
pub use find::{FindError, Wanted, find, wanted};
pub use health::{Condition, HealthQuestion, look_over};
pub use inspect::{BlockDevice, Inspection, SeenUser, inspect};
pub use late::stage_mounted;
pub use outlook::{Access, Layout, Of, Outlook, outlook};
pub use overview::{Overview, State, overviews};
pub use own::{instantiate, mount_reserved, reserve};
pub use plan::{Need, needs, staged};
pub use reconcile::{Finding, Mode, Report, SweepError, Thing, reconcile, sweep};
pub use release::{release, release_sandbox};
pub use resize::resize;
pub use stage::{stage, stage_at_once, unstage};
pub use stats::{Stats, stats};
pub use users::{NewContainer, begin, check_host, has_device, publish, withdraw};

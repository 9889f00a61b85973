//! The state on disk: the crust directory, where volumes are staged (KEP-2857), and the runtime's own records of who
//! uses them.
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | target paths and their digests |
//! | [`info`] | `mountInfo.json` |
//! | [`crust`] | the crust directory's entries, and a staged volume's files |
//! | [`record`], [`sandbox`], [`bundle`] | typed records |
//! | [`ownership`] | whether a pod may have a volume that others have |
//! | [`state_directory`], [`lock`] | `/run/runcrust`: indexes and locks |
//! | [`config`], [`logging`] | the configuration, and the log that it names |
//! | [`files`] | atomic writes, and reading only what root wrote |
//! | [`json`] | values in a JSON text that is edited in place |
//! | [`printable`] | text for terminals |
//! | [`check`] | checks of the node, and their findings |
//! | [`trust`] | whether root alone can change what a path leads to, and whether this process is root |
//! | [`foreign`] | files that others keep, replaced whole |
//! | [`socket`], [`ops`] | who listens on a socket; where crust_ops does |

#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::too_many_lines))]

pub mod bundle;
pub mod check;
pub mod config;
pub mod crust;
pub mod files;
pub mod foreign;
pub mod info;
pub mod json;
pub mod limits;
pub mod lock;
pub mod logging;
pub mod ops;
pub mod ownership;
pub mod printable;
mod process;
pub mod record;
pub mod sandbox;
mod sentence;
pub mod socket;
pub mod state_directory;
pub mod target;
mod target_index;
pub mod trust;

pub use config::{Config, DelegateKind};
pub use crust::{CrustDirectory, Volume};
pub use info::MountInfo;
pub use process::{EndReason, Process, ProcessState};
pub use sentence::sentence;
pub use state_directory::StateDirectory;
pub use target::{Digest, TargetPath, TargetPathError};
pub use target_index::TargetIndex;

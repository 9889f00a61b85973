//! The state on disk: the crust directory with the staged volumes (KEP-2857), and runcrust's records of their users.
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | target paths and their digests |
//! | [`info`] | `mountInfo.json` |
//! | [`crust`] | the crust directory, its entries and their files |
//! | [`backing`] | what a volume's file system is on: a device or a share |
//! | [`record`], [`sandbox`], [`bundle`] | the types of records |
//! | [`ownership`] | the decision whether a pod may use a volume that others use |
//! | [`state_directory`], [`lock`] | `/run/runcrust`: records, indexes and locks |
//! | [`config`], [`logging`] | runcrust's configuration and log |
//! | [`timeouts`] | the timeouts of creates and hooks |
//! | [`files`] | atomic writes, and reads of files that only root can change |
//! | [`foreign`] | atomic changes of files that other programs own |
//! | [`json`] | values in a JSON text that is edited in place |
//! | [`printable`] | text for terminals |
//! | [`StatusLine`] | a line on a terminal that shows what a command is doing |
//! | [`check`] | node checks and their findings |
//! | [`trust`] | whether root alone can change what a path leads to, and whether this process is root |
//! | [`socket`], [`ops`] | the state of a Unix socket, and the path of `crust_ops`'s |

#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::too_many_lines))]

pub mod backing;
pub mod bundle;
pub mod check;
pub mod config;
pub mod crust;
mod error_message;
pub mod files;
pub mod foreign;
pub mod info;
pub mod json;
pub mod lock;
pub mod logging;
pub mod ops;
pub mod ownership;
pub mod printable;
mod process;
pub mod record;
pub mod sandbox;
pub mod socket;
pub mod state_directory;
mod status_line;
pub mod target;
mod target_index;
pub mod timeouts;
pub mod trust;

pub use backing::{Backing, BackingKey};
pub use config::{Config, DelegateKind};
pub use crust::{CrustDirectory, Volume};
pub use error_message::error_message;
pub use info::MountInfo;
pub use process::{EndReason, Process, ProcessState};
pub use state_directory::StateDirectory;
pub use status_line::StatusLine;
pub use target::{Digest, TargetPath, TargetPathError};
pub use target_index::TargetIndex;

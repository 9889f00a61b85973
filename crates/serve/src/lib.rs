//! Serves gRPC on unix sockets, whatever the services are: what `crust_ops`, crust-csi and crustlet have in common.
//!
//! | module | contents |
//! |---|---|
//! | [`Daemon`] | the names and texts in which one daemon differs from another |
//! | [`flags`] | values of flags |
//! | [`process`] | threads, descriptors, signals, systemd |
//! | [`log`] | lines on standard error, or entries of systemd's journal |
//! | [`listen`] | sockets of root's alone, made here or given by systemd, and their connections |
//! | [`http`] | pages by HTTP: metrics, health |
//! | [`metrics`] | the registration of metrics, and their page |
//! | [`Servers`] | a gRPC server for each socket, with its health, its description and its end |
//! | `client` | calls of another service, and how they fail |
//! | [`CallObserver`], [`record_volume`] | the layer around every call: who counts it, and the volume that it is about |
//! | [`ErrorReply`], [`check_path_length`] | errors, as callers get them |
//! | [`KeyedLocks`] | one call at a time for a volume |
//!
//! A daemon is run by [`process::main`], which starts its [`log`]: it takes the signals, opens its
//! sockets, adds its services to [`Servers`], and serves until it is told to end.

#![forbid(unsafe_code)]

mod call;
#[cfg(feature = "client")]
pub mod client;
mod daemon;
mod errors;
pub mod flags;
pub mod http;
mod keyed_locks;
pub mod listen;
pub mod log;
pub mod metrics;
pub mod process;
mod servers;

pub use call::{CallObserver, record_volume};
pub use daemon::{Daemon, KnownSockets};
pub use errors::{ErrorReply, PathTooLong, check_path_length, go_code, proto_code};
pub use keyed_locks::{KeyedLockGuard, KeyedLocks};
pub use servers::{DEFAULT_MAX_CONNECTIONS, ServeError, ServerLimits, Servers};

//! A gRPC server on unix sockets: the parts that `crust_ops`, crust-csi and crustlet share.
//!
//! | module | contents |
//! |---|---|
//! | [`Daemon`] | the names and texts that differ between the daemons |
//! | [`flags`] | parsers for the values of command-line flags |
//! | [`process`] | threads, file descriptors, signals, systemd |
//! | [`log`] | lines on standard error, or entries in systemd's journal |
//! | [`listen`] | sockets that only root can use, bound here or passed by systemd, and their connections |
//! | [`http`] | HTTP pages: metrics, health |
//! | [`metrics`] | registration of metrics, and their page |
//! | [`Servers`] | one gRPC server for each socket, with health, reflection and shutdown |
//! | `client` | calls to another service, and their failures |
//! | [`CallObserver`], [`record_volume`] | the layer around every call: metrics, and the volume in the log |
//! | [`ErrorReply`], [`check_path_length`] | errors in the form in which callers get them |
//! | [`KeyedLocks`] | one call at a time for a volume |
//!
//! A daemon passes its future to [`process::main`], which starts the [`log`]. The future installs the signal handlers,
//! opens the sockets, adds the services to [`Servers`], and serves until a signal ends it.

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

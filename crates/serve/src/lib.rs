//! What each gRPC daemon of ours on unix sockets needs, whatever it serves there.
//!
//! | room | what is there |
//! |---|---|
//! | [`Daemon`] | what differs from one daemon to the next, in a few words |
//! | [`process`] | threads, descriptors, signals, systemd |
//! | [`log`] | standard error, or systemd's journal |
//! | [`listen`] | sockets of root's alone, made or given by systemd, and their connections |
//! | [`http`] | pages for whoever asks: metrics, health |
//! | [`metrics`] | the registration of metrics, and their page |
//! | [`Servers`] | a gRPC server a socket, with its health, its description and its end |
//! | `client` | a call of somebody else's service, and how it has failed |
//! | [`Observer`], [`about`] | what every call goes through: who counts it, and what it is about |
//! | [`Failure`] | an error, as a caller gets it |
//! | [`check_length`] | a path of a request that none can be |
//! | [`Volumes`] | one call at a time for a volume |
//!
//! A daemon is run by [`process::main`], which starts its [`log`]: it takes the signals, opens its
//! sockets, adds its services to [`Servers`], and serves until it is told to end.

#![forbid(unsafe_code)]

mod call;
#[cfg(feature = "client")]
pub mod client;
mod daemon;
mod failure;
pub mod http;
pub mod listen;
pub mod log;
pub mod metrics;
mod path;
pub mod process;
mod servers;
mod volumes;

pub use call::{Observer, about};
pub use daemon::{Daemon, KnownSockets};
pub use failure::{Failure, go_code, proto_code};
pub use path::{TooLong, check_length};
pub use servers::{CONNECTIONS, Limits, ServeError, Servers};
pub use volumes::{Held, Volumes};

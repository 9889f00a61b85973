//! The handler in a daemon's configuration: added, brought up to date, removed; all else stays as its
//! author wrote it.
//!
//! | room | what is there |
//! |---|---|
//! | [`request`] | from what is asked for to a plan; which handlers there are |
//! | [`containerd`], [`crio`], [`podman`], [`docker`] | from the texts of an engine's files to their new texts; nothing is read or written |
//! | [`drop_in`] | what CRI-O and podman have in common |
//! | [`tables`], [`json`], [`lines`] | editing TOML and JSON in place |
//! | [`entry`], [`edit`] | whether an entry of the handler's name is runcrust's; a file's old and new text |
//! | [`change`] | what becomes of the node's files: shown, written |
//! | [`node`] | the files of a node, which may be a container's `/host` |
//! | [`programs`], [`users`], [`service`] | what else an installation takes: the programs and what these need, nobody who uses them, the daemon |
//! | [`settings`] | the configuration of the program that the handler runs |

#![forbid(unsafe_code)]
// Who reads the documentation sees the private rooms too.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod change;
mod containerd;
mod crio;
mod docker;
mod drop_in;
mod edit;
mod entry;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod json;
#[cfg(feature = "fuzzing")]
mod laws;
mod lines;
mod node;
mod podman;
mod programs;
mod request;
mod service;
mod settings;
mod tables;
#[cfg(any(test, feature = "fuzzing"))]
mod testing;
mod users;

pub use change::{Change, Plan};
pub use entry::Handler;
pub use error::HandlerError;
pub use lines::unified;
pub use node::Node;
pub use programs::{Copy, NodeDelegate, check_complete, find_delegate, plan_copies};
pub use request::{Engine, Request, entries, handlers, install, uninstall};
pub use service::{Outcome, Service, Verb};
pub use users::{check_unused, check_unused_by_any};

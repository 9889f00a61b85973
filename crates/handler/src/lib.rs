//! The handler in a daemon's configuration: added, brought up to date, removed; all else stays as its
//! author wrote it.
//!
//! | room | what is there |
//! |---|---|
//! | [`containerd`], [`crio`], [`podman`], [`docker`] | from the texts of an engine's files to their new texts; nothing is read or written |
//! | [`tables`], [`json`], [`lines`] | editing TOML and JSON in place |
//! | [`entry`] | whether an entry of the handler's name is runcrust's |
//! | [`node`] | the files of a node, which may be a container's `/host` |
//! | [`change`] | a file's old and new text: shown, written |
//! | [`programs`], [`users`], [`service`] | what else an installation takes: the programs and what these need, nobody who uses them, the daemon |

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
mod json;
mod lines;
mod node;
mod podman;
mod programs;
mod request;
mod service;
mod tables;
mod users;

pub use change::{Change, Plan};
pub use error::HandlerError;
pub use node::Node;
pub use programs::{Copy, plan_copies};
pub use request::{Engine, Request, install, uninstall};
pub use service::{Outcome, Service, Verb};
pub use users::{check_complete, check_unused};

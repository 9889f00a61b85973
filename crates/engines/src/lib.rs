//! Configures container engines (containerd, CRI-O, podman, docker) to use runcrust as a runtime.
//!
//! An engine consists of one module that implements [`Engine`], its `mod` line here, and one line in [`ENGINES`]. The
//! rules that are the same for all engines are in [`handler`] (which handlers belong to runcrust and may be removed)
//! and [`plan`] (how changes are shown and written).
//!
//! | module | contents |
//! |---|---|
//! | [`engine`] | the trait |
//! | [`containerd`], [`crio`], [`podman`], [`docker`] | the engines |
//! | [`handler`] | installing, removing and listing handlers |
//! | [`plan`] | showing and writing the changes to a node's files |
//! | [`toml`], [`json`] | editing TOML and JSON in place |
//! | [`node_root`], [`config_file`] | the files of a node, whose root may be `/host` in a container |
//! | [`programs`] | the programs on the node, and their configuration |
//! | [`in_use`] | checking whether a live container needs the handler |
//! | [`service`] | the engine's systemd unit |

#![forbid(unsafe_code)]
// Readers of the documentation see the private modules too.
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod config_file;
mod containerd;
mod crio;
mod docker;
mod engine;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod handler;
mod in_use;
mod json;
mod node_root;
mod plan;
mod podman;
mod programs;
mod service;
mod toml;

pub use engine::{Engine, EngineInfo};
pub use error::{HandlerError, Result};
pub use handler::{Handler, HandlerRequest, handlers, install, runcrust_handlers, uninstall};
pub use in_use::{check_unused, check_unused_by_any};
pub use node_root::NodeRoot;
pub use plan::{ChangePlan, FileChange, unified};
pub use programs::{NodeDelegate, ProgramCopy, check_complete, find_delegate, plan_copies};
pub use service::{RestartOutcome, Service};

use containerd::Containerd;
use crio::Crio;
use docker::Docker;
use podman::Podman;

/// Every engine that runcrust can be installed into.
pub const ENGINES: &[&dyn Engine] = &[&Containerd, &Crio, &Podman, &Docker];

/// Returns the engine that has this name on the command line.
#[must_use]
pub fn find_engine(name: &str) -> Option<&'static dyn Engine> {
    let mut engines = ENGINES.iter().copied();
    engines.find(|engine| engine.info().name == name)
}

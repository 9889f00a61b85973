//! `crust-csi`: a CSI driver on loop devices that can defer mounts to the container runtime (KEP-2857).
//!
//! | module | contents |
//! |---|---|
//! | `settings`, `features` | the command line, and what the driver can do by it |
//! | `services` | the gRPC services: one call at a time for a volume |
//! | `driver` | the state that they share, and the publications that really exist |
//! | `controller` | volumes' storage |
//! | `node` | volumes on this node: staged, published, measured, grown |
//! | `capability` | how a volume is to be used: capabilities, parameters, contexts |
//! | `store`, `images` | a record and an image file for each volume |
//! | `serde_text` | serialisation by `Display` and `FromStr` |
//! | `format` | fsck, and mkfs where there is nothing to lose |
//! | `mounts`, `target_cleanup` | mounts on the host; a target path that is given back |
//! | `kubelet_paths` | the forms of kubelet's paths |
//! | `ops` | the client of `crust_ops` |
//! | `health` | what is wrong with a volume, or with the storage of all |
//! | `refusal` | why a call isn't carried out, and its status |
//!
//! Images become loop devices in [`crust_blockfs::loops`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod capability;
mod controller;
mod driver;
mod features;
mod field_error;
mod format;
mod health;
mod images;
mod kubelet_paths;
mod mounts;
mod node;
mod ops;
mod refusal;
mod serde_text;
mod server;
mod services;
mod settings;
mod store;
mod target_cleanup;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use settings::Settings;

/// The driver's name in logs and errors.
const NAME: &str = "crust-csi";

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let settings = Settings::parse();
    crust_serve::process::main(NAME, settings.log_level, server::serve(settings))
}

/// The command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Settings::command()
}

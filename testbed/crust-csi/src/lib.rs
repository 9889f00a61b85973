//! `crust-csi`: a CSI driver on loop devices that can defer mounts to the container runtime (KEP-2857).
//!
//! | room | what is there |
//! |---|---|
//! | `settings`, `features` | the command line, and what the driver can do by it |
//! | `services` | the gRPC services: one call at a time for a volume |
//! | `driver` | what they work with |
//! | `controller` | volumes' storage |
//! | `node` | volumes on this node: staged, published, measured, grown |
//! | `usage` | how a volume is to be used: capabilities, parameters, contexts |
//! | `store`, `images`, `data` | a record and an image file for each volume |
//! | `text` | how records have what has a text of its own |
//! | `format` | fsck, and mkfs where there is nothing to lose |
//! | `mounts`, `clear` | mounts on the host; a target path that is given back |
//! | `kubelet` | which paths are kubelet's |
//! | `ops` | the client of `crust_ops` |
//! | `health` | what is wrong with a volume, or with the storage of all |
//! | `field`, `refusal` | what is wrong with a request; why a call isn't carried out |
//!
//! Images become loop devices in [`crust_blockfs::loops`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod clear;
mod controller;
mod data;
mod driver;
mod features;
mod field;
mod format;
mod health;
mod images;
mod kubelet;
mod mounts;
mod node;
mod ops;
mod refusal;
mod server;
mod services;
mod settings;
mod store;
mod text;
mod usage;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use settings::Settings;

/// What its users know it by.
const NAME: &str = "crust-csi";

/// All that the program does; what it returns is the exit code.
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

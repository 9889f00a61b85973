//! `crust-csi`: a CSI driver on loop devices that can defer mounts to the container runtime (KEP-2857).
//!
//! | module | contents |
//! |---|---|
//! | `settings`, `features` | the command line, and the capabilities that it leaves the driver |
//! | `services` | the gRPC services, which run one call at a time for each volume |
//! | `driver` | the state that the services share, and the publications that really exist |
//! | `controller` | the storage of volumes: create, expand, list, delete |
//! | `node` | volumes on this node: stage, publish, statistics, expand |
//! | `capability` | volume capabilities, `StorageClass` parameters, volume contexts |
//! | `store`, `images` | a record and an image file for each volume |
//! | `serde_text` | serialisation by `Display` and `FromStr` |
//! | `format` | fsck, and mkfs on empty volumes |
//! | `mounts`, `target_cleanup` | mounts on the host; removal of target paths |
//! | `kubelet_paths` | the forms of kubelet's paths |
//! | `ops` | the client of `crust_ops` |
//! | `health` | problems of a volume, or of the storage of all volumes |
//! | `refusal` | reasons for not carrying out a call, and their gRPC statuses |
//!
//! [`crust_blockfs::loops`] attaches images to loop devices.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod capability;
mod controller;
mod csi_driver;
mod driver;
mod driver_context;
mod features;
mod field_error;
mod format;
mod health;
mod images;
mod kubelet_paths;
mod mounts;
mod nfs;
mod node;
mod ops;
mod refusal;
mod serde_text;
mod server;
mod services;
mod settings;
mod store;
mod target_cleanup;
mod usage;

use std::process::ExitCode;

use clap::CommandFactory as _;

use settings::Settings;

/// The program's name in logs and errors.
const NAME: &str = "crust-csi";

/// Runs the program and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let settings = Settings::parse_or_exit();
    crust_serve::process::main(NAME, settings.log_level, server::serve(settings))
}

/// Returns the definition of the command line, for manuals and completions.
#[must_use]
pub fn command() -> clap::Command {
    Settings::command()
}

//! `crust-csi`: a CSI driver on loop devices or NFS shares that can defer mounts to the container runtime (KEP-2857).
//!
//! | module | contents |
//! |---|---|
//! | `settings`, `features` | the command line, and the capabilities that it leaves the driver |
//! | `server`, `services` | the gRPC services, which run one call at a time for each volume |
//! | `csi_driver` | the interface between the services and the drivers |
//! | `block`, `nfs` | the drivers for block volumes and for shares of NFS servers |
//! | `driver_context` | the state that both drivers have: the lock of the data directory, target paths, deferral |
//! | `requests`, `capability`, `capacity_range`, `quantity` | fields of requests |
//! | `inline_volume` | recognizes volumes in the spec of a pod |
//! | `publish_decision` | whether a pod may use a volume that other pods use |
//! | `store`, `serde_text` | a record for each volume; serialisation by `Display` and `FromStr` |
//! | `mounts`, `target_cleanup` | mounts on the host; removal of target paths |
//! | `kubelet_paths` | the forms of kubelet's paths |
//! | `ops` | the client of `crust_ops` |
//! | `usage`, `health` | usage and problems of a volume |
//! | `refusal`, `field_error` | reasons for not carrying out a call, and their gRPC statuses |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod block;
mod capability;
mod capacity_range;
mod csi_driver;
mod driver_context;
mod features;
mod field_error;
mod health;
mod inline_volume;
mod kubelet_paths;
mod mounts;
mod nfs;
mod ops;
mod publish_decision;
mod quantity;
mod refusal;
mod requests;
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

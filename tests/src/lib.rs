//! The fixtures of the black-box suites: those of [`runcrust_harness`], and crust_ops, crust-csi, crustlet, podman,
//! docker, buildah, manifests, traces and trees.
//!
//! Run the suites in a mount namespace that looks like a systemd host's:
//!
//! ```text
//! unshare --mount --propagation private sh tests/host-namespace.sh cargo nextest run -p runcrust-tests
//! ```

mod automount;
mod buildah;
pub mod console;
mod cri_relay;
pub mod crustlet;
pub mod csi;
mod disk;
mod docker;
mod engine;
pub mod fault_injection;
pub mod flags;
pub mod gc;
pub mod grammar;
pub mod hostile_nfs_server;
pub mod http;
mod hung;
pub mod installed;
pub mod kata;
pub mod kubelet;
pub mod kubernetes;
pub mod manifests;
pub mod nfs_server;
pub mod odd_json;
pub mod ops;
mod pod;
mod podman;
pub mod random;
pub mod refusal;
mod relay;
mod staged;
mod staged_volume;
pub mod steps;
pub mod system_calls;
mod testbed;
pub mod trace;
pub mod tree;
mod watcher;
pub mod writer;
pub mod xattr;

pub use runcrust_harness::*;

pub use automount::Automount;
pub use buildah::Buildah;
pub use cri_relay::CriRelay;
pub use crustlet::Crustlet;
pub use csi::Csi;
pub use disk::Disk;
pub use docker::{DOCKER_IMAGE, Docker};
pub use engine::Engine;
pub use hostile_nfs_server::HostileNfsServer;
pub use hung::HungFilesystem;
pub use installed::InstalledPod;
pub use nfs_server::NfsServer;
pub use ops::Ops;
pub use pod::Pod;
pub use podman::{PODMAN_CONFIGURATION, PODMAN_IMAGE, Podman};
pub use staged::StagedPair;
pub use staged_volume::{POD, StagedVolume};
pub use testbed::{Setup, Testbed};
pub use watcher::MountWatcher;

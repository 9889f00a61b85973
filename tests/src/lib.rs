//! The harness of the black-box suites: fixtures around the built `runcrust`, with real runc and crun, real loop
//! devices and a private containerd.
//!
//! A test has one [`TestDir`]. Everything that it creates is in there, under names that no other test uses, so tests
//! run in parallel. Every resource is owned by a guard that removes it in `Drop`, and also when the process is
//! interrupted (see [`cleanup`]).
//!
//! Helpers panic when something fails, unless they return a `Result` or a [`Run`]: a test's panic is its report.
//!
//! Run the suites in a mount namespace that looks like a systemd host's:
//!
//! ```text
//! unshare --mount --propagation private sh tests/host-namespace.sh cargo nextest run -p runcrust-tests
//! ```

mod automount;
mod buildah;
pub mod bundle;
pub mod cgroup;
pub mod cleanup;
pub mod console;
pub mod container;
mod containerd;
pub mod cri;
pub mod crustlet;
pub mod csi;
mod daemon;
mod delegate;
mod dir;
mod disk;
mod docker;
mod engine;
pub mod fault_injection;
pub mod flags;
pub mod gc;
pub mod grammar;
mod grpc;
mod handler;
pub mod host;
pub mod http;
mod hung;
pub mod installed;
pub mod kata;
pub mod kubelet;
pub mod kubernetes;
pub mod loopdev;
pub mod manifests;
pub mod mounts;
pub mod node;
pub mod odd_json;
pub mod ops;
mod pod;
mod podman;
pub mod process;
pub mod random;
pub mod refusal;
mod relay;
mod run;
mod runtime;
mod staged;
mod staged_volume;
pub mod steps;
pub mod system_calls;
mod testbed;
pub mod trace;
pub mod tree;
pub mod volume;
mod wait;
mod watcher;
pub mod writer;
pub mod xattr;

pub use automount::Automount;
pub use buildah::Buildah;
pub use bundle::Bundle;
pub use container::Container;
pub use containerd::{APP_IMAGE, Containerd, ContainerdConfig, CriPod, PAUSE_IMAGE};
pub use cri::{Cri, CriError};
pub use crustlet::Crustlet;
pub use csi::Csi;
pub use delegate::Delegate;
pub use dir::{TestDir, process_name};
pub use disk::Disk;
pub use docker::{DOCKER_IMAGE, Docker};
pub use engine::Engine;
pub use handler::{Handler, Version, binary};
pub use hung::HungFilesystem;
pub use installed::InstalledPod;
pub use loopdev::{LoopDevice, fail_ext4, retry_lost_race};
pub use node::Node;
pub use ops::Ops;
pub use pod::Pod;
pub use podman::{PODMAN_CONFIGURATION, PODMAN_IMAGE, Podman};
pub use run::Run;
pub use runtime::Runtime;
pub use staged::StagedPair;
pub use staged_volume::{POD, StagedVolume};
pub use testbed::{Setup, Testbed};
pub use wait::{holds_within, wait_until, wait_until_async};
pub use watcher::MountWatcher;

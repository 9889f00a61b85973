//! The basic fixtures of the black-box suites, which the demo uses too: a node with a private runcrust, bundles,
//! containers on real runc and crun, loop devices, and a private containerd with a client of its CRI.
//!
//! A test has one [`TestDir`]. Everything that it creates is in there, under names that no other test uses, so tests
//! run in parallel. Every resource is owned by a guard that removes it in `Drop`, and also when the process is
//! interrupted (see [`cleanup`]).
//!
//! Helpers panic when something fails, unless they return a `Result` or a [`Run`]: a test's panic is its report.

pub mod bundle;
pub mod cgroup;
pub mod cleanup;
pub mod container;
pub mod containerd;
pub mod cri;
pub mod daemon;
pub mod delegate;
pub mod dir;
pub mod grpc;
pub mod handler;
pub mod host;
pub mod loopdev;
pub mod mounts;
pub mod node;
pub mod process;
pub mod run;
pub mod runtime;
pub mod transcript;
pub mod volume;
pub mod wait;

pub use bundle::Bundle;
pub use container::Container;
pub use containerd::{APP_IMAGE, Containerd, ContainerdConfig, CriPod, PAUSE_IMAGE};
pub use cri::{Cri, CriError};
pub use delegate::Delegate;
pub use dir::{TestDir, process_name};
pub use handler::{Handler, Version, binary, package_binary};
pub use loopdev::{LoopDevice, fail_ext4, retry_lost_race};
pub use node::Node;
pub use run::Run;
pub use runtime::Runtime;
pub use wait::{holds_within, wait_until, wait_until_async};

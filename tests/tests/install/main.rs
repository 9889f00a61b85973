//! `runcrust install` and `runcrust uninstall` for each engine.
//!
//! Each call names a file or a root directory of the test, so that nothing changes on this host.

mod all;
mod containerd;
mod delegate;
mod files;
mod in_use;
mod podman;
mod programs;
mod scene;
mod service;

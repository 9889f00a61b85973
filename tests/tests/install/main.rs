//! `runcrust install` and `runcrust uninstall`, for the engines that there are.
//!
//! Each call names a file or a root directory of the test's own: nothing is done to this host.

mod all;
mod containerd;
mod delegate;
mod files;
mod in_use;
mod podman;
mod programs;
mod scene;
mod service;

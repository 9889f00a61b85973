//! File systems on block devices: what turns a device into a file system that a container can be given, without a mount
//! in the host's mount namespace. This crate knows devices, file systems and mounts, and neither pods nor records.
//!
//! | module | what it does |
//! |---|---|
//! | [`device`], [`loops`] | finds a block device's number and aliases; attaches an image file once |
//! | [`probe`], [`contents`] | tells which file system a device holds, and what else, so that nobody formats data |
//! | [`fstypes`] | describes each type of file system in one table, which all others ask |
//! | [`options`] | turns mount options of CSI drivers into attributes and file-system options |
//! | [`filesystem`] | makes a *detached* mount of a device, or one sentence that says why not |
//! | [`view`], [`subpath`], [`user_namespace`] | makes what a container gets of a mounted volume |
//! | [`fsgroup`] | applies kubelet's group ownership on descriptors; it can be resumed |
//! | [`usage`], [`resize`] | reports bytes and inodes of a mounted volume; grows it to its device's size |
//! | [`mountinfo`], [`device_mounts`], [`mount_kind`], [`overlay`] | reads `/proc/<pid>/mountinfo` and what mounts are made of |
//! | [`identity`], [`place`] | tells which file a path leads to, by which mount, and where within its file system |
//! | [`openat2`], [`bounded`] | opens below a directory or within a root; reads no more than a limit |
//! | [`timed_probe`], [`Deadline`] | probes what may hang, with a time limit |
//! | [`errno`], [`kernel`] | names errors as strace does; tells what the running kernel is |
//! | [`sys`] | makes the system calls that `rustix` and `nix` lack; the only module with `unsafe` |
//!
//! Decisions are pure functions, tested without root; effects are thin and act on descriptors.

#![warn(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod bounded;
pub mod contents;
mod deadline;
pub mod device;
pub mod device_mounts;
mod device_number;
pub mod errno;
pub mod filesystem;
pub mod fsgroup;
pub mod fstypes;
pub mod identity;
pub mod kernel;
pub mod location;
pub mod loops;
pub mod mount_kind;
pub mod mountinfo;
pub mod openat2;
pub mod options;
pub mod overlay;
pub mod probe;
pub mod resize;
mod signature;
pub mod subpath;
pub mod sys;
pub mod timed_probe;
pub mod usage;
pub mod user_namespace;
pub mod view;

pub use deadline::Deadline;
pub use device_number::{DeviceNumber, DiskSeq, ParseDeviceNumberError};

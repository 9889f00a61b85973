//! Mounts file systems on block devices for containers, without a mount in the host's mount namespace. This crate deals
//! with devices, file systems and mounts. It doesn't know pods or records.
//!
//! | module | what it does |
//! |---|---|
//! | [`device`], [`loops`] | finds block devices and their aliases; attaches image files to loop devices |
//! | [`probe`], [`contents`] | finds out which file system, or what other data, a device holds |
//! | [`fstypes`] | describes each type of file system in one table, which all other modules use |
//! | [`options`] | parses mount options into attributes and file system options |
//! | [`filesystem`] | makes a *detached* mount of a device, or explains why it can't be mounted |
//! | [`view`], [`subpath`], [`user_namespace`] | creates a container's view of a mounted volume |
//! | [`fsgroup`] | applies kubelet's group ownership, and can resume after an interruption |
//! | [`usage`], [`resize`] | reports bytes and inodes of a mounted volume; grows it to the size of its device |
//! | [`mountinfo`], [`device_mounts`], [`mount_kind`], [`overlay`] | reads mount tables; classifies mounts |
//! | [`identity`], [`location`] | finds the file that a path leads to, its mount, and its path in its file system |
//! | [`openat2`], [`bounded`] | opens files within a directory; reads files with a size limit |
//! | [`timed_probe`], [`Deadline`] | limits the time of operations that may hang |
//! | [`errno`], [`kernel`] | names error numbers; reports properties of the running kernel |
//! | [`sys`] | makes the system calls that `rustix` and `nix` lack; the only module with `unsafe` code |
//!
//! Decisions are pure functions that are tested without root. The functions that act on the system are short, and work
//! on descriptors.

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

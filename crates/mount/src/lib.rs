//! The mount mechanism: what it takes to turn a block device into a file system that a container
//! can be given, without anything ever being mounted in the host's mount namespace.
//!
//! Each room has one job:
//!
//! | module | job |
//! |---|---|
//! | [`options`] | mount options as CSI drivers write them → attributes, read-only, file-system options |
//! | [`device`] | a block device: its number, its aliases through sysfs, whether somebody has it |
//! | [`loops`] | an image file as a block device, found again, never twice |
//! | [`probe`] | which file system a device holds, to tell "wrong type" from "nothing there" |
//! | [`contents`] | what else a device holds, so that nobody formats data |
//! | [`filesystem`] | device + options → a *detached* mount, or one sentence that says why not |
//! | [`fsgroup`] | kubelet's recursive group ownership, on descriptors, resumable |
//! | [`subpath`] | a subPath → a descriptor inside the volume, never outside |
//! | [`usage`] | bytes and inodes of a mounted volume |
//! | [`resize`] | a mounted file system grows to its device's size |
//! | [`mountinfo`] | `/proc/<pid>/mountinfo`, read |
//! | [`ids`] | the user namespace that a container will have |
//! | [`view`] | what a container is given of a mounted volume |
//! | [`sandbox`], [`attach`], [`rootfs`] | where that is: the pod's sandbox, the delegate's namespace, a container that is being made |
//! | [`capabilities`], [`trial`] | what this host's kernel allows; whether its mount API works here |
//! | [`volume`] | a staged volume's life, and who uses it |
//! | [`selinux`] | the label that a volume's files have |
//! | [`within`] | where a path leads in a container that is yet to be made |
//! | [`propagated`] | mounts of a volume that came out of a container |
//! | [`device_mounts`] | the mounts of a namespace by their devices |
//! | [`privileges`] | what root may do and a step of ours needn't |
//! | [`identity`] | which directory or file a path leads to, and by which mount |
//! | [`place`] | where something is within its file system, whatever it was reached by |
//! | [`overlay`] | the directories that an overlay is made of |
//! | [`errno`] | the names of errors, for sentences that read like strace |
//! | [`patience`] | who answers, of what may hang |
//! | [`sys`] | the system calls `rustix` lacks; the only room with `unsafe` |
//!
//! Decisions are pure functions, tested without root; effects are thin and act on descriptors.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod attach;
pub mod bare;
pub mod capabilities;
pub mod contents;
pub mod device;
pub mod device_mounts;
pub mod errno;
pub mod filesystem;
pub mod fsgroup;
pub mod identity;
pub mod ids;
mod linux;
pub mod loops;
pub mod mount_kind;
pub mod mountinfo;
pub mod namespace;
pub mod options;
mod origin;
pub mod overlay;
pub mod patience;
pub mod place;
pub mod privileges;
pub mod probe;
pub mod propagated;
pub mod resize;
pub mod rootfs;
pub mod sandbox;
pub mod selinux;
pub mod subpath;
pub mod sys;
mod tmpfs;
pub mod trial;
pub mod usage;
pub mod view;
pub mod volume;
pub mod within;

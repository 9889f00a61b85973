//! Mounts shares of NFS servers for containers, without a mount in the host's mount namespace. This crate deals with
//! shares, options and mounts. Like `crust-blockfs`, it doesn't know pods or records.
//!
//! | module | what it does |
//! |---|---|
//! | [`share`] | parses `server:/export` |
//! | [`options`] | knows the mount options of nfs(5), and brings them into one form |
//! | [`version`] | negotiates the version of the protocol |
//! | [`server`] | resolves a server's name |
//! | `probe` | probes the services of a server before the kernel contacts them |
//! | [`mount`] | makes a *detached* mount of a share |
//! | [`error`] | says why a share can't be mounted, and what to do |
//! | [`client`] | reports whether this node has an NFS client |

#![warn(missing_docs)]

pub mod client;
pub mod error;
pub mod mount;
pub mod options;
mod probe;
pub mod server;
pub mod share;
pub mod version;

pub use share::{ParseShareError, Share};

/// The file system types of shares, as in fsopen(2) and in a mount table. The kernel shows `nfs4` for a share that was
/// mounted as `nfs` with version 4.
pub const FSTYPES: [&str; 2] = ["nfs4", "nfs"];

/// Returns whether a file system of this type is a share of an NFS server.
#[must_use]
pub fn is_nfs(fstype: &[u8]) -> bool {
    FSTYPES.iter().any(|known| known.as_bytes() == fstype)
}

//! Shares of NFS servers as volumes. The servers are the kernel's, in network namespaces of their own. Most tests need a
//! kernel with NFS, and run in the guest.

mod attacks;
mod groups;
mod interfaces;
mod node_without_nfs;
mod pods;
mod servers;
mod shares;

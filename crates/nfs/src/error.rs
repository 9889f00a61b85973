//! The errors of mounts of shares.

use std::net::SocketAddr;
use std::{fmt, io};

use crust_blockfs::errno::Name;
use crust_blockfs::options::FsOption;
use rustix::io::Errno;

use crate::Share;
use crate::server::{self, ServerError};
use crate::version::{NfsVersion, is_unreachable};

/// The error of a mount. It is displayed as one sentence with the share, the call and the next step. The caller adds the
/// volume's name.
#[derive(Debug, thiserror::Error)]
pub enum ShareMountError {
    /// The kernel has no NFS client.
    #[error(
        "fsopen({fstype}) for {share}: this kernel has no {fstype} file system; hint: install the kernel's module (nfs, \
         nfsv4), or use the volume on another node"
    )]
    NoClient {
        /// The share, as text.
        share: String,
        /// The type that the kernel lacks.
        fstype: String,
    },
    /// Version 3 was negotiated, and locks couldn't be taken.
    #[error(
        "{share}: rpc.statd doesn't run on this node, and version 3 needs it for locks; hint: start it (systemctl start \
         rpc-statd), or use the mount option nolock if no program locks files"
    )]
    NoStatd {
        /// The share, as text.
        share: String,
    },
    /// Version 3 was negotiated from another network namespace than the host's, and locks couldn't be taken.
    #[error(
        "{share}: version 3 needs rpc.statd for locks, and the kernel finds it only in the host's network namespace, \
         not in the one of this mount; hint: use version 4, or the mount option nolock or local_lock=all if no program \
         locks files"
    )]
    NoStatdInNetwork {
        /// The share, as text.
        share: String,
    },
    /// The server can't be used.
    #[error("{share}: {source}")]
    Server {
        /// The share, as text.
        share: String,
        /// The error of the resolver, or of the first address that doesn't answer.
        source: ServerError,
    },
    /// The server exports something other than a directory. The kernel mounts it nevertheless.
    #[error(
        "{share}: it is {kind} on the server, not a directory; hint: correct the volume's share, or let the server \
         export a directory"
    )]
    NotADirectory {
        /// The share, as text.
        share: String,
        /// The type of the file with its article.
        kind: &'static str,
    },
    /// A call of the mount API failed.
    #[error(transparent)]
    Call(Box<FailedShareCall>),
}

impl ShareMountError {
    /// Returns whether an option of the request is certainly wrong.
    #[must_use]
    pub fn is_request_error(&self) -> bool {
        matches!(self, Self::Call(failed) if matches!(failed.call, ShareMountCall::Option(_)))
    }
}

/// A call that makes a mount of a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShareMountCall {
    /// fsopen(2), which creates the file-system context.
    Open,
    /// fsconfig(2), which sets this option.
    Option(FsOption),
    /// fsconfig(2) with `FSCONFIG_CMD_CREATE`, which contacts the server.
    Create,
    /// fsmount(2), which creates a mount of the superblock.
    Mount,
    /// mount(2), for a source that is too long for fsconfig(2).
    Legacy,
    /// statx(2) on the new mount.
    Stat,
}

/// A failed call of the mount API.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {}{}; hint: {}", Name(*errno), self.messages(), self.hint())]
pub struct FailedShareCall {
    /// The share that was to be mounted.
    pub share: Share,
    /// The call that failed.
    pub call: ShareMountCall,
    /// The server's address that was used.
    pub address: SocketAddr,
    /// The version that was tried.
    pub version: NfsVersion,
    /// The error of the call.
    pub errno: Errno,
    /// Messages from the kernel's log of the file-system context, oldest first.
    pub log: Vec<String>,
}

impl fmt::Display for ShareMountCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("fsopen"),
            Self::Option(option) => write!(f, "fsconfig({:?})", option.to_string()),
            Self::Create => f.write_str("fsconfig(create)"),
            Self::Mount => f.write_str("fsmount"),
            Self::Legacy => f.write_str("mount"),
            Self::Stat => f.write_str("statx"),
        }
    }
}

impl FailedShareCall {
    fn messages(&self) -> String {
        let (share, version) = (self.share.to_string(), self.version);
        let address = server::kernel_text(self.address);
        let log = if self.log.is_empty() {
            String::new()
        } else {
            format!(" (kernel: {})", self.log.join("; "))
        };
        format!(" for {share:?} at {address} with version {version}{log}")
    }

    fn hint(&self) -> &'static str {
        match (&self.call, self.errno) {
            (ShareMountCall::Option(_), _) => "correct the volume's mount options by nfs(5)",
            (_, Errno::ACCESS | Errno::PERM) => {
                "let the server export the directory to this node with sec=sys (exports(5), `exportfs -v` on the \
                 server)"
            }
            (_, Errno::NOENT | Errno::NOTDIR) => {
                "the directory doesn't exist on the server or isn't exported: correct the volume's share, or create and \
                 export the directory"
            }
            (_, Errno::PROTONOSUPPORT | Errno::OPNOTSUPP | Errno::INVAL) => {
                "the server or this kernel doesn't support the version or the protocol: correct the options vers and \
                 proto, or start the server's NFS service"
            }
            (_, Errno::STALE) => {
                "the exported directory was replaced on the server: export it again (`exportfs -ra`)"
            }
            (_, Errno::BUSY) => {
                "the share is mounted with another SELinux label: give the pods the same level, or use nosharecache"
            }
            (_, errno) if is_unreachable(errno) => {
                "check that the server runs and that no firewall is in between"
            }
            _ => "see the kernel's log (dmesg) on this node and on the server",
        }
    }
}

impl ShareMountError {
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Server { source, .. } => match source {
                ServerError::Unreachable { source, .. } => Some(errno_of_connection(source)),
                ServerError::NotOffered { .. } => Some(Errno::OPNOTSUPP),
                ServerError::Unresolved { .. } | ServerError::NoAddress { .. } => None,
            },
            // The kernel may have version 3 alone.
            Self::NoClient { .. } => Some(Errno::PROTONOSUPPORT),
            // The server wasn't asked, so neither another version nor another address can help.
            Self::Call(failed) if matches!(failed.call, ShareMountCall::Option(_)) => None,
            Self::Call(failed) => Some(failed.errno),
            _ => None,
        }
    }

    /// Returns whether a later error should replace this one.
    pub(crate) fn is_replaced_by(&self, later: &Self) -> bool {
        self.weight().is_replaced_by(later.weight())
    }

    fn weight(&self) -> Weight {
        match self {
            Self::Server { source, .. } => match source {
                ServerError::NoAddress { .. } => Weight::NotTried,
                ServerError::Unreachable { .. } | ServerError::NotOffered { .. } => {
                    Weight::Unreachable
                }
                ServerError::Unresolved { .. } => Weight::Decisive,
            },
            Self::Call(_) | Self::NoClient { .. } => match self.errno() {
                Some(Errno::PROTONOSUPPORT | Errno::OPNOTSUPP | Errno::INVAL) => {
                    Weight::Unsupported
                }
                Some(errno) if is_unreachable(errno) => Weight::Unreachable,
                _ => Weight::Decisive,
            },
            Self::NoStatd { .. } | Self::NoStatdInNetwork { .. } | Self::NotADirectory { .. } => {
                Weight::Decisive
            }
        }
    }
}

/// How much the error of an attempt says about the share, if several attempts fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// There was no attempt.
    NotTried,
    /// The server or the kernel lacks the version.
    Unsupported,
    /// A service doesn't answer at an address. It may at another one.
    Unreachable,
    /// The server has answered, or another address can't help.
    Decisive,
}

impl Weight {
    /// Returns whether an error of the later weight should replace one of this weight. Of several addresses that don't
    /// answer, the first one is reported.
    const fn is_replaced_by(self, later: Self) -> bool {
        match self {
            Self::NotTried | Self::Unsupported => true,
            Self::Unreachable => !matches!(later, Self::Unreachable),
            Self::Decisive => false,
        }
    }
}

/// Returns the error number of a connection. An error without one is that of a server that doesn't answer.
fn errno_of_connection(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::TIMEDOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(errno: Errno) -> ShareMountError {
        ShareMountError::Call(Box::new(FailedShareCall {
            share: "srv:/a".parse().unwrap(),
            call: ShareMountCall::Create,
            address: "10.0.0.1:0".parse().unwrap(),
            version: NfsVersion::V4_2,
            errno,
            log: Vec::new(),
        }))
    }

    fn server(source: ServerError) -> ShareMountError {
        let share = "srv:/a".to_owned();
        ShareMountError::Server { share, source }
    }

    fn unreachable(errno: Errno) -> ShareMountError {
        server(ServerError::Unreachable {
            address: "[::1]:2049".parse().unwrap(),
            service: "NFS version 4",
            source: errno.into(),
        })
    }

    /// The error that is reported after attempts with these errors.
    fn reported(errors: &[&ShareMountError]) -> String {
        let chosen = errors.iter().reduce(|reported, later| {
            if reported.is_replaced_by(later) {
                later
            } else {
                reported
            }
        });
        chosen.unwrap().to_string()
    }

    #[test]
    fn the_error_that_says_most_is_reported() {
        let not_tried = server(ServerError::NoAddress {
            host: "srv".to_owned(),
            transport: "tcp6",
        });
        let not_offered = server(ServerError::NotOffered {
            address: "::1".parse().unwrap(),
            service: "NFS version 3",
            protocol: "TCP",
        });
        let (silent, refused) = (
            unreachable(Errno::TIMEDOUT),
            unreachable(Errno::CONNREFUSED),
        );
        let unsupported = call(Errno::PROTONOSUPPORT);
        let (forbidden, missing) = (call(Errno::ACCESS), call(Errno::NOENT));
        let share = || "srv:/a".to_owned();
        let no_statd = ShareMountError::NoStatd { share: share() };
        let directory = ShareMountError::NotADirectory {
            share: share(),
            kind: "a file",
        };
        for (errors, expected) in [
            (&[&not_tried, &silent][..], &silent),
            (&[&silent, &refused], &silent),
            (&[&not_tried, &refused, &silent, &refused], &refused),
            (&[&silent, &forbidden], &forbidden),
            (&[&silent, &missing], &missing),
            (&[&silent, &no_statd], &no_statd),
            (&[&silent, &directory], &directory),
            (&[&silent, &unsupported], &unsupported),
            (&[&silent, &call(Errno::TIMEDOUT)], &silent),
            (&[&unsupported, &refused], &refused),
            (&[&unsupported, &missing], &missing),
            (&[&refused, &not_offered], &refused),
            (&[&not_offered, &forbidden], &forbidden),
            (&[&missing, &refused], &missing),
            (&[&missing, &unsupported], &missing),
            (&[&forbidden, &missing], &forbidden),
        ] {
            assert_eq!(reported(errors), expected.to_string(), "{errors:?}");
        }
    }
}

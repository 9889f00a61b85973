//! Negotiation of the protocol's version. The kernel mounts with the version that it is told, so mount.nfs(8) tries one
//! version after the other, and so does this crate.

use std::fmt;

use rustix::io::Errno;

/// A version of the protocol that the kernel can be told to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NfsVersion {
    /// Version 3 (RFC 1813).
    V3,
    /// Version 4.0 (RFC 7530).
    V4_0,
    /// Version 4.1 (RFC 8881).
    V4_1,
    /// Version 4.2 (RFC 7862).
    V4_2,
}

impl NfsVersion {
    /// Returns the version in the form of the option `vers`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "3",
            Self::V4_0 => "4.0",
            Self::V4_1 => "4.1",
            Self::V4_2 => "4.2",
        }
    }

    /// Returns whether this is a minor version of version 4.
    #[must_use]
    pub const fn is_v4(self) -> bool {
        !matches!(self, Self::V3)
    }

    /// Returns whether a client has a session with its server (RFC 8881, section 2.10).
    #[must_use]
    pub const fn has_session(self) -> bool {
        matches!(self, Self::V4_1 | Self::V4_2)
    }
}

impl fmt::Display for NfsVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The versions that a mount may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedVersions {
    /// All versions, the highest one first.
    Any,
    /// The minor versions of version 4, the highest one first.
    AnyV4,
    /// No version but this one.
    Only(NfsVersion),
}

impl AllowedVersions {
    /// Returns the version to try first.
    #[must_use]
    pub const fn first(self) -> NfsVersion {
        match self {
            Self::Any | Self::AnyV4 => NfsVersion::V4_2,
            Self::Only(version) => version,
        }
    }

    /// Returns the next lower version.
    const fn below(self, version: NfsVersion) -> Option<NfsVersion> {
        match (self, version) {
            (Self::Any | Self::AnyV4, NfsVersion::V4_2) => Some(NfsVersion::V4_1),
            (Self::Any | Self::AnyV4, NfsVersion::V4_1) => Some(NfsVersion::V4_0),
            (Self::Any, NfsVersion::V4_0) => Some(NfsVersion::V3),
            _ => None,
        }
    }

    /// Returns version 3, if it is allowed and is lower than `version`.
    const fn v3_below(self, version: NfsVersion) -> Option<NfsVersion> {
        match (self, version) {
            (Self::Any, NfsVersion::V4_0 | NfsVersion::V4_1 | NfsVersion::V4_2) => {
                Some(NfsVersion::V3)
            }
            _ => None,
        }
    }
}

/// The attempt that follows a failed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAttempt {
    /// The same address with this version.
    Version(NfsVersion),
    /// The server's next address, because this one can't be reached.
    Address,
    /// Nothing: every other attempt would fail in the same way.
    None,
}

/// Decides what to try after a mount with `version` failed with `errno`. Follows `nfs_autonegotiate` of nfs-utils.
#[must_use]
pub fn after_failure(allowed: AllowedVersions, version: NfsVersion, errno: Errno) -> NextAttempt {
    let version_or_none =
        |next: Option<NfsVersion>| next.map_or(NextAttempt::None, NextAttempt::Version);
    match errno {
        // The server or this kernel lacks the version. Kernels without a minor version report EINVAL.
        Errno::PROTONOSUPPORT | Errno::INVAL => version_or_none(allowed.below(version)),
        // A server without a root file system for version 4 reports ENOENT, and one from before Linux 2.6.25 EPERM.
        Errno::NOENT | Errno::PERM => version_or_none(allowed.v3_below(version)),
        // A server of version 3 only, or none at all.
        Errno::CONNREFUSED => match allowed.v3_below(version) {
            Some(next) => NextAttempt::Version(next),
            None => NextAttempt::Address,
        },
        // rpcbind doesn't know a service at this address.
        Errno::OPNOTSUPP => NextAttempt::Address,
        errno if is_unreachable(errno) => NextAttempt::Address,
        _ => NextAttempt::None,
    }
}

/// Returns whether an error means that a server can't be reached by one of its addresses.
#[must_use]
pub fn is_unreachable(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::TIMEDOUT
            | Errno::CONNREFUSED
            | Errno::CONNRESET
            | Errno::CONNABORTED
            | Errno::HOSTUNREACH
            | Errno::HOSTDOWN
            | Errno::NETUNREACH
            | Errno::NETDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::AFNOSUPPORT
            | Errno::NOTCONN
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use AllowedVersions::{Any, AnyV4, Only};
    use NextAttempt::{Address, Version};
    use NfsVersion::{V3, V4_0, V4_1, V4_2};

    #[test]
    fn versions_are_tried_from_the_highest_to_the_lowest() {
        for (allowed, expected) in [
            (Any, &[V4_2, V4_1, V4_0, V3][..]),
            (AnyV4, &[V4_2, V4_1, V4_0]),
            (Only(V4_1), &[V4_1]),
            (Only(V3), &[V3]),
        ] {
            for errno in [Errno::PROTONOSUPPORT, Errno::INVAL] {
                let mut tried = vec![allowed.first()];
                while let Version(next) = after_failure(allowed, tried[tried.len() - 1], errno) {
                    tried.push(next);
                }
                assert_eq!(tried, expected, "{allowed:?} {errno}");
            }
        }
    }

    #[test]
    fn other_errors_lead_to_version_3_or_the_next_address() {
        for (allowed, version, errno, expected) in [
            (Any, V4_2, Errno::NOENT, Version(V3)),
            (Any, V4_2, Errno::PERM, Version(V3)),
            (AnyV4, V4_2, Errno::NOENT, NextAttempt::None),
            (Any, V3, Errno::NOENT, NextAttempt::None),
            (Any, V4_2, Errno::CONNREFUSED, Version(V3)),
            (Any, V3, Errno::CONNREFUSED, Address),
            (AnyV4, V4_2, Errno::CONNREFUSED, Address),
            (Any, V4_2, Errno::TIMEDOUT, Address),
            (Only(V3), V3, Errno::HOSTUNREACH, Address),
            (Any, V3, Errno::OPNOTSUPP, Address),
            (Any, V4_2, Errno::ACCESS, NextAttempt::None),
            (Any, V4_2, Errno::BUSY, NextAttempt::None),
        ] {
            let next = after_failure(allowed, version, errno);
            assert_eq!(next, expected, "{allowed:?} {version} {errno}");
        }
    }
}

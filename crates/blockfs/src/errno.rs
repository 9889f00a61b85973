//! Symbolic names of error numbers, such as `EINVAL`. The standard library shows "Invalid argument (os error 22)".

use std::{fmt, io};

use rustix::io::Errno;

/// Returns the error number of an I/O error; `EIO` if it has none.
#[must_use]
pub fn from_io_error(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// An error number that is displayed as its symbolic name (errno(3)), or as `errno <n>` if the calls of this crate
/// aren't known to return it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name(pub Errno);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(errno, _)| *errno == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "errno {}", self.0.raw_os_error()),
        }
    }
}

const NAMES: &[(Errno, &str)] = &[
    (Errno::PERM, "EPERM"),
    (Errno::NOENT, "ENOENT"),
    (Errno::SRCH, "ESRCH"),
    (Errno::INTR, "EINTR"),
    (Errno::IO, "EIO"),
    (Errno::NXIO, "ENXIO"),
    (Errno::TOOBIG, "E2BIG"),
    (Errno::BADF, "EBADF"),
    (Errno::AGAIN, "EAGAIN"),
    (Errno::NOMEM, "ENOMEM"),
    (Errno::ACCESS, "EACCES"),
    (Errno::FAULT, "EFAULT"),
    (Errno::NOTBLK, "ENOTBLK"),
    (Errno::BUSY, "EBUSY"),
    (Errno::EXIST, "EEXIST"),
    (Errno::XDEV, "EXDEV"),
    (Errno::NODEV, "ENODEV"),
    (Errno::NOTDIR, "ENOTDIR"),
    (Errno::ISDIR, "EISDIR"),
    (Errno::INVAL, "EINVAL"),
    (Errno::NFILE, "ENFILE"),
    (Errno::MFILE, "EMFILE"),
    (Errno::NOTTY, "ENOTTY"),
    (Errno::FBIG, "EFBIG"),
    (Errno::NOSPC, "ENOSPC"),
    (Errno::ROFS, "EROFS"),
    (Errno::MLINK, "EMLINK"),
    (Errno::RANGE, "ERANGE"),
    (Errno::NAMETOOLONG, "ENAMETOOLONG"),
    (Errno::NOSYS, "ENOSYS"),
    (Errno::NOTEMPTY, "ENOTEMPTY"),
    (Errno::LOOP, "ELOOP"),
    (Errno::NODATA, "ENODATA"),
    (Errno::BADMSG, "EBADMSG"),
    (Errno::OVERFLOW, "EOVERFLOW"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    // Errors of connections, which a mount of a share passes on.
    (Errno::PIPE, "EPIPE"),
    (Errno::PROTO, "EPROTO"),
    (Errno::PROTONOSUPPORT, "EPROTONOSUPPORT"),
    (Errno::AFNOSUPPORT, "EAFNOSUPPORT"),
    (Errno::ADDRINUSE, "EADDRINUSE"),
    (Errno::ADDRNOTAVAIL, "EADDRNOTAVAIL"),
    (Errno::NETDOWN, "ENETDOWN"),
    (Errno::NETUNREACH, "ENETUNREACH"),
    (Errno::CONNABORTED, "ECONNABORTED"),
    (Errno::CONNRESET, "ECONNRESET"),
    (Errno::NOBUFS, "ENOBUFS"),
    (Errno::NOTCONN, "ENOTCONN"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
    (Errno::CONNREFUSED, "ECONNREFUSED"),
    (Errno::HOSTDOWN, "EHOSTDOWN"),
    (Errno::HOSTUNREACH, "EHOSTUNREACH"),
    (Errno::NOLCK, "ENOLCK"),
    (Errno::REMOTE, "EREMOTE"),
    (Errno::KEYEXPIRED, "EKEYEXPIRED"),
    (Errno::STALE, "ESTALE"),
    (Errno::UCLEAN, "EUCLEAN"),
    (Errno::REMOTEIO, "EREMOTEIO"),
    (Errno::DQUOT, "EDQUOT"),
    (Errno::NOMEDIUM, "ENOMEDIUM"),
    (Errno::MEDIUMTYPE, "EMEDIUMTYPE"),
    (Errno::SHUTDOWN, "ESHUTDOWN"),
    // Numbers that only the kernel uses (include/linux/errno.h). NFS returns them to programs nevertheless if a server
    // breaks the protocol.
    (Errno::from_raw_os_error(521), "EBADHANDLE"),
    (Errno::from_raw_os_error(523), "EBADCOOKIE"),
    (Errno::from_raw_os_error(524), "ENOTSUPP"),
    (Errno::from_raw_os_error(525), "ETOOSMALL"),
    (Errno::from_raw_os_error(526), "ESERVERFAULT"),
    (Errno::from_raw_os_error(527), "EBADTYPE"),
    (Errno::from_raw_os_error(528), "EJUKEBOX"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_displayed_as_its_symbolic_name() {
        assert_eq!(Name(Errno::UCLEAN).to_string(), "EUCLEAN");
        assert_eq!(Name(Errno::NOTBLK).to_string(), "ENOTBLK");
        assert_eq!(Name(Errno::PROTONOSUPPORT).to_string(), "EPROTONOSUPPORT");
    }

    #[test]
    fn an_unknown_errno_is_displayed_as_its_number() {
        assert_eq!(
            Name(Errno::from_raw_os_error(4000)).to_string(),
            "errno 4000"
        );
    }
}

//! What this host allows: by asking its kernel, not by a list.

use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use crate::errno::Name;
use crate::privileges::{self, PrivilegesError};

/// The kernel doesn't say.
#[derive(Debug, thiserror::Error)]
pub enum CapabilitiesError {
    /// Which file systems it has.
    #[error("{call}: {}; hint: only root on the node can ask", Name(*errno))]
    FileSystem {
        /// The call, with its arguments.
        call: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// What this process may do.
    #[error(transparent)]
    Privileges(#[from] PrivilegesError),
}

/// Those of the file systems that the running kernel can mount; a module is loaded for it.
pub fn mountable(fstypes: &[String]) -> Result<Vec<String>, CapabilitiesError> {
    let mut known = Vec::new();
    for fstype in fstypes {
        match fsopen(fstype.as_str(), FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_) => known.push(fstype.clone()),
            Err(Errno::NODEV) => {}
            Err(errno) => {
                let call = format!("fsopen({fstype:?})");
                return Err(CapabilitiesError::FileSystem { call, errno });
            }
        }
    }
    Ok(known)
}

/// Whether one of the file systems can grow while it is mounted, by this process.
pub fn can_grow(fstypes: &[String]) -> Result<bool, CapabilitiesError> {
    let has_resource = privileges::can_use_reserves()?;
    Ok(fstypes.iter().any(|fstype| grows(fstype, has_resource)))
}

/// ext4 asks for `CAP_SYS_RESOURCE`, the others for what a mount takes anyhow.
fn grows(fstype: &str, has_resource: bool) -> bool {
    match fstype {
        "xfs" | "btrfs" => true,
        "ext2" | "ext3" | "ext4" => has_resource,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ext4_alone_needs_a_capability_of_its_own() {
        assert!(grows("xfs", false) && grows("btrfs", false));
        assert!(!grows("ext4", false) && grows("ext4", true));
        assert!(!grows("vfat", true));
    }

    #[test]
    fn what_the_kernel_does_not_know_is_left_out() {
        let asked = ["tmpfs", "no-such-fs"].map(str::to_owned);
        assert_eq!(mountable(&asked).unwrap(), ["tmpfs"]);
    }
}

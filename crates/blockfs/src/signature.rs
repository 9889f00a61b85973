//! The signature of a file system: what its superblock says about it.

use std::fmt;

use rustix::io::Errno;

/// The fields of a file system's superblock that this crate uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The type that such a file system is mounted as.
    pub fstype: &'static str,
    /// The file system's UUID. A clone or a restored snapshot has the same UUID.
    pub uuid: Uuid,
    /// The size of the file system in bytes, including the space for its own metadata.
    pub size: u64,
    /// The block size in bytes, of which `size` is a multiple; 0 if the superblock has no valid block size.
    pub block: u64,
    /// The number of devices that the file system spans; more than 1 only for btrfs.
    pub devices: u64,
    /// The size in bytes of the smallest unit that the file system reads. A device with larger logical blocks can't
    /// hold it.
    pub sector: u64,
    /// Whether every mount of the file system is read-only.
    pub is_read_only: bool,
    /// The state in which the kernel refuses some mounts of the file system; `None` if it is in no such state.
    pub restriction: Option<&'static Restriction>,
}

/// A state of a file system in which the kernel refuses some of its mounts.
#[derive(Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The error with which such a mount fails.
    pub errno: Errno,
    /// The reason, as a clause.
    pub reason: &'static str,
    /// The next step for an operator.
    pub hint: &'static str,
}

/// The UUID of a file system, in the byte order on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns whether all bytes are zero, which means that the file system was given no UUID.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    /// Writes the UUID as the kernel and blkid(8) do: `0f1e2d3c-0011-2233-4455-66778899aabb`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_the_kernel_writes_it() {
        let uuid = Uuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string(), "30313233-3435-3637-3839-616263646566");
        assert!(Uuid([0; 16]).is_nil() && !uuid.is_nil());
    }
}

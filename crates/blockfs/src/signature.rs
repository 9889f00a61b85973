//! The signature of a file system, by its superblock.

use std::fmt;

use rustix::io::Errno;

/// A file system's superblock, as far as it is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// The type that such a file system is mounted as.
    pub fstype: &'static str,
    /// The file system's UUID. A clone or a restored snapshot has the same.
    pub uuid: Uuid,
    /// How much of the device is the file system's, in bytes: all of it, what it keeps for itself
    /// too.
    pub size: u64,
    /// The size is a whole number of these, in bytes; 0 where the superblock makes no sense.
    pub block: u64,
    /// How many devices it lies on; only btrfs knows more than one.
    pub devices: u64,
    /// The smallest unit that it reads, in bytes: a device with larger logical blocks can't hold it.
    pub sector: u64,
    /// No mount can write to it.
    pub is_read_only: bool,
    /// Why the kernel refuses some mounts of it.
    pub restriction: Option<&'static Restriction>,
}

/// A state of a file system in which the kernel refuses some mounts of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The error of such a mount.
    pub errno: Errno,
    /// The reason, as a clause.
    pub reason: &'static str,
    /// The next step for an operator.
    pub hint: &'static str,
}

/// A file system's UUID, in the order it is written on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns true for all zeroes: the file system was given none.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Uuid {
    /// `0f1e2d3c-0011-2233-4455-66778899aabb`, as the kernel and blkid(8) write it.
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

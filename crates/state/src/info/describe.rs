//! A staged volume in one line, for the log.

use std::fmt;

use super::MountInfo;

/// Shows everything that was staged except the target path: `device "/dev/sda", fstype "ext4", options []`.
impl fmt::Display for MountInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, fstype, options) =
            (self.device.to_string_lossy(), &self.fstype, &self.options);
        write!(
            f,
            "device {device:?}, fstype {fstype:?}, options {options:?}"
        )?;
        if let Some(gid) = self.fs_group {
            write!(f, ", fsGroup {gid} ({})", self.fs_group_change_policy)?;
        }
        if self.read_only {
            f.write_str(", read-only")?;
        }
        if let Some(mode) = self.access_mode {
            write!(f, ", access mode {mode}")?;
        }
        if self.device_node {
            f.write_str(", with the device node")?;
        }
        if let Some(seq) = self.disk_seq {
            write!(f, ", disk {seq}")?;
        }
        Ok(())
    }
}

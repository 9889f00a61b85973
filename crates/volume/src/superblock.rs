//! The superblock of a volume that is mounted in a sandbox, as the kernel shows it. It stands in for the volume's
//! record if that was lost.

use crust_state::record::Superblock;

use super::error::Cause;
use crate::sandbox::SandboxMount;
use crust_blockfs::options;

/// A mounted superblock, by the mount table.
#[derive(Debug)]
pub(super) struct MountedSuperblock {
    fstype: String,
    text: String,
    /// `None` if the text can't be parsed.
    options: Option<Vec<String>>,
    /// Whether the mount is read-only, whatever the superblock is.
    only_reads: bool,
}

impl MountedSuperblock {
    pub(super) fn of(mounted: &SandboxMount) -> Self {
        let (fstype, options) = (&mounted.fstype, &mounted.super_options);
        let (fstype, options) = (fstype.to_string_lossy(), options.to_string_lossy());
        Self::new(&fstype, &options, mounted.is_read_only)
    }

    fn new(fstype: &str, options: &str, only_reads: bool) -> Self {
        Self {
            fstype: fstype.to_owned(),
            text: options.to_owned(),
            options: options::parse_shown(options),
            only_reads,
        }
    }

    /// Returns the SELinux label that the superblock was mounted with.
    pub(super) fn label(&self) -> Option<&str> {
        let mut options = self.options.iter().flatten();
        options.find_map(|option| option.strip_prefix("context="))
    }

    /// Whether the superblock is read-only.
    pub(super) fn is_read_only(&self) -> bool {
        self.options.iter().flatten().any(|option| option == "ro")
    }

    /// Fails if it isn't what was staged, as far as the kernel shows that: an option that it doesn't show was not
    /// given, and additional options may be the file system's own.
    pub(super) fn check(&self, staged: &Superblock, only_reads: bool) -> Result<(), Cause> {
        let mode = if staged.read_only { "ro" } else { "rw" };
        let mut wanted = staged.options.iter().map(String::as_str).chain([mode]);
        let has = |wanted: &str| self.options.iter().flatten().any(|it| it == wanted);
        let same_label = self.label() == staged.label();
        let is_same_mount = self.only_reads == only_reads;
        if self.fstype == staged.fstype && is_same_mount && same_label && wanted.all(has) {
            return Ok(());
        }
        let mount = |only_reads| {
            if only_reads {
                ", read-only for the pod"
            } else {
                ""
            }
        };
        Err(Cause::Unrecorded {
            mounted: format!("{} ({}){}", self.fstype, self.text, mount(self.only_reads)),
            staged: format!("{staged}{}", mount(only_reads)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(options: &[&str], read_only: bool) -> Superblock {
        Superblock {
            fstype: "ext4".to_owned(),
            options: options.iter().map(ToString::to_string).collect(),
            read_only,
        }
    }

    #[test]
    fn a_mount_matches_its_staging_where_the_kernel_shows_it() {
        let label = "context=system_u:object_r:container_file_t:s0:c1,c2";
        let quoted = r#"rw,context="system_u:object_r:container_file_t:s0:c1,c2",data=journal"#;
        for (staged, shown, same) in [
            (staged(&[], false), "rw", true),
            (staged(&[], true), "rw", false),
            (staged(&[], false), "ro", false),
            (staged(&["data=journal"], false), "rw,data=journal", true),
            (staged(&["data=journal"], false), "rw", false),
            (staged(&["stripe=1"], false), "rw,stripe=16", false),
            (staged(&[label], false), quoted, true),
            (staged(&[label, "data=journal"], false), quoted, true),
            (staged(&[label, "data=ordered"], false), quoted, false),
            (staged(&["c2\""], false), quoted, false),
            // A label is one that was asked for, whatever else is shown.
            (staged(&[], false), quoted, false),
            (staged(&["context=u:r:t:s0:c1,c3"], false), quoted, false),
            (staged(&[label], false), "rw,seclabel", false),
            (staged(&[], false), "rw,seclabel", true),
            (staged(&[], false), "rw,context=\"u:r", false),
            // What the file system may have added itself: docs/limitations.md.
            (staged(&[], false), "rw,data=journal", true),
        ] {
            for (is, was) in [(false, false), (true, true), (true, false), (false, true)] {
                let judged = MountedSuperblock::new("ext4", shown, is).check(&staged, was);
                let same = same && is == was;
                assert_eq!(judged.is_ok(), same, "{staged:?} {shown} {is} {was}");
            }
        }
    }

    #[test]
    fn another_file_system_is_not_what_was_staged() {
        let error = MountedSuperblock::new("ext3", "rw", false).check(&staged(&[], false), false);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("with ext3 (rw), by nobody"), "{error}");
        assert!(error.contains("staged as ext4 (rw) by now"), "{error}");
    }

    #[test]
    fn a_label_is_read_without_its_quotation_marks() {
        for (options, label) in [
            (r#"rw,context="u:r:t:s0:c1,c2""#, Some("u:r:t:s0:c1,c2")),
            ("rw,context=u:r:t:s0", Some("u:r:t:s0")),
            (r#"rw,fscontext="u:r:t:s0:c1,c2""#, None),
            ("rw,seclabel", None),
        ] {
            assert_eq!(
                MountedSuperblock::new("ext4", options, false).label(),
                label,
                "{options}"
            );
        }
    }
}

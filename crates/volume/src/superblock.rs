//! The superblock of a volume that is mounted in a sandbox, as the mount table shows it. It is used instead of the
//! volume's record if that was lost.

use crust_blockfs::DeviceNumber;
use crust_state::record::Superblock;

use super::error::Cause;
use crate::sandbox::SandboxMount;
use crust_blockfs::options;

/// How the mount table shows the type and options of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShownOptions {
    /// The given type and options are shown, perhaps with others.
    AsGiven,
    /// The type and options are shown that the client and the server have negotiated.
    Negotiated,
}

/// A mounted superblock as the mount table shows it.
#[derive(Debug)]
pub(super) struct MountedSuperblock {
    fstype: String,
    /// The options' text in the mount table.
    options_text: String,
    /// `None` if the text can't be parsed.
    options: Option<Vec<String>>,
    /// Whether the mount is read-only. The superblock may be writable nevertheless.
    is_read_only_mount: bool,
    /// The number of the superblock.
    number: DeviceNumber,
}

impl MountedSuperblock {
    pub(super) fn from_mount(mounted: &SandboxMount) -> Self {
        let (fstype, options) = (&mounted.fstype, &mounted.super_options);
        let (fstype, options) = (fstype.to_string_lossy(), options.to_string_lossy());
        Self {
            number: mounted.superblock,
            ..Self::new(&fstype, &options, mounted.is_read_only)
        }
    }

    fn new(fstype: &str, options: &str, is_read_only_mount: bool) -> Self {
        Self {
            number: DeviceNumber::new(0, 0),
            fstype: fstype.to_owned(),
            options_text: options.to_owned(),
            options: options::parse_shown(options),
            is_read_only_mount,
        }
    }

    pub(super) fn number(&self) -> DeviceNumber {
        self.number
    }

    /// Returns the SELinux label that the superblock was mounted with; `None` without one.
    pub(super) fn label(&self) -> Option<&str> {
        let mut options = self.options.iter().flatten();
        options.find_map(|option| option.strip_prefix("context="))
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.options.iter().flatten().any(|option| option == "ro")
    }

    /// Fails if the superblock isn't the staged one, as far as the mount table shows it.
    ///
    /// A staged option that isn't shown counts as a difference. Additional options may be the file system's own and are
    /// accepted. `is_read_only_mount` says whether the pod's mount should be read-only. `options` says whether type and
    /// options are shown as they were given.
    pub(super) fn check(
        &self,
        staged: &Superblock,
        is_read_only_mount: bool,
        options: ShownOptions,
    ) -> Result<(), Cause> {
        let are_given = options == ShownOptions::AsGiven;
        let mode = match (staged.read_only, are_given) {
            (false, _) => Some("rw"),
            (true, true) => Some("ro"),
            // Some kernels make only the mount of a share read-only (Linux 6.14: "nfs: ignore SB_RDONLY when mounting
            // nfs").
            (true, false) => None,
        };
        let staged_options = staged.options.iter().map(String::as_str);
        let mut required = staged_options.filter(|_| are_given).chain(mode);
        let is_same_type = !are_given || self.fstype == staged.fstype;
        let has = |option: &str| self.options.iter().flatten().any(|it| it == option);
        let is_same_label = self.label() == staged.label();
        let is_same_mount = self.is_read_only_mount == is_read_only_mount;
        if is_same_type && is_same_mount && is_same_label && required.all(has) {
            return Ok(());
        }
        let suffix = |is_read_only_mount| {
            if is_read_only_mount {
                ", read-only for the pod"
            } else {
                ""
            }
        };
        Err(Cause::Unrecorded {
            mounted: format!(
                "{} ({}){}",
                self.fstype,
                self.options_text,
                suffix(self.is_read_only_mount)
            ),
            staged: format!("{staged}{}", suffix(is_read_only_mount)),
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
    fn a_mounted_superblock_is_compared_by_the_shown_options() {
        let label = "context=system_u:object_r:container_file_t:s0:c1,c2";
        let quoted = r#"rw,context="system_u:object_r:container_file_t:s0:c1,c2",data=journal"#;
        for (staged, shown, is_same) in [
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
            // A shown label must have been requested, unlike other options.
            (staged(&[], false), quoted, false),
            (staged(&["context=u:r:t:s0:c1,c3"], false), quoted, false),
            (staged(&[label], false), "rw,seclabel", false),
            (staged(&[], false), "rw,seclabel", true),
            (staged(&[], false), "rw,context=\"u:r", false),
            // The file system may have added the option itself: see docs/limitations.md.
            (staged(&[], false), "rw,data=journal", true),
        ] {
            for (mounted_ro, staged_ro) in
                [(false, false), (true, true), (true, false), (false, true)]
            {
                let mounted = MountedSuperblock::new("ext4", shown, mounted_ro);
                let result = mounted.check(&staged, staged_ro, ShownOptions::AsGiven);
                let expected = is_same && mounted_ro == staged_ro;
                let case = format!("{staged:?} {shown} {mounted_ro} {staged_ro}");
                assert_eq!(result.is_ok(), expected, "{case}");
            }
        }
    }

    #[test]
    fn another_file_system_differs_from_the_staged_one() {
        let error = MountedSuperblock::new("ext3", "rw", false).check(
            &staged(&[], false),
            false,
            ShownOptions::AsGiven,
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("as ext3 (rw), but has no record"), "{error}");
        assert!(error.contains("staged as ext4 (rw) now"), "{error}");
    }

    #[test]
    fn negotiated_options_are_not_compared() {
        for (read_only, shown, is_same) in [
            (false, "rw,vers=4.2,hard", true),
            (false, "ro,vers=4.2", false),
            (true, "ro,vers=4.2", true),
            (true, "rw,vers=4.2", true),
        ] {
            let mut staged = staged(&["vers=4", "soft"], read_only);
            staged.fstype = "nfs".to_owned();
            let mounted = MountedSuperblock::new("nfs4", shown, read_only);
            let result = mounted.check(&staged, read_only, ShownOptions::Negotiated);
            assert_eq!(result.is_ok(), is_same, "{read_only} {shown}");
        }
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

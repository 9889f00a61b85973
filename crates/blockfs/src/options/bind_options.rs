//! Finds the options that a container's bind mount needs to keep the attributes of the volume's mount.
//!
//! runc and crun make a bind mount in two steps. The second one is a remount that sets the attributes in the options
//! and clears all others (`MS_REMOUNT | MS_BIND`, mount(2)). The attributes of the volume's own mount are lost then,
//! unless the options repeat them.

use rustix::mount::MountAttrFlags;

/// An option, and the attribute that it sets.
struct BindOption {
    option: &'static str,
    attribute: MountAttrFlags,
    /// The bits that the option sets to `attribute`. For a flag they are the same bits.
    mask: MountAttrFlags,
    /// The options that set the same bits to another value.
    alternatives: &'static [&'static str],
}

const fn flag(
    option: &'static str,
    attribute: MountAttrFlags,
    alternatives: &'static [&'static str],
) -> BindOption {
    BindOption {
        option,
        attribute,
        mask: attribute,
        alternatives,
    }
}

const fn atime(option: &'static str, attribute: MountAttrFlags) -> BindOption {
    BindOption {
        option,
        attribute,
        mask: MountAttrFlags::MOUNT_ATTR__ATIME,
        alternatives: &[
            "atime",
            "noatime",
            "relatime",
            "norelatime",
            "strictatime",
            "nostrictatime",
        ],
    }
}

/// The options that all versions since runc 1.1 and crun 1.8 know. They would pass an unknown option to mount(2) as
/// data, so `nosymfollow`, which crun doesn't know, is missing here.
const BIND_OPTIONS: [BindOption; 6] = [
    flag("nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID, &["suid"]),
    flag("nodev", MountAttrFlags::MOUNT_ATTR_NODEV, &["dev"]),
    flag("noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC, &["exec"]),
    flag(
        "nodiratime",
        MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        &["diratime"],
    ),
    atime("noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    atime("strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
];

impl BindOption {
    /// Returns whether `option` sets the same attribute, or sets it recursively (`rnosuid`).
    fn is_set_by(&self, option: &str) -> bool {
        let is_same = |option: &str| option == self.option || self.alternatives.contains(&option);
        is_same(option) || option.strip_prefix('r').is_some_and(is_same)
    }
}

/// Returns the options that have to be added to a bind mount with `options` so that it keeps the `attributes` of the
/// mount that it binds. An attribute that `options` already set, to whatever value, is left alone.
#[must_use]
pub fn missing_bind_options<S: AsRef<str>>(
    attributes: MountAttrFlags,
    options: &[S],
) -> Vec<&'static str> {
    let needed = BIND_OPTIONS
        .iter()
        .filter(|known| attributes.intersection(known.mask) == known.attribute);
    let is_set = |known: &BindOption| {
        options
            .iter()
            .any(|option| known.is_set_by(option.as_ref()))
    };
    let missing = needed.filter(|known| !is_set(known));
    missing.map(|known| known.option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parse;

    #[test]
    fn unset_attributes_are_taken_from_the_volume() {
        let all = "nosuid,nodev,noexec,nodiratime,noatime";
        for (volume, mount, expected) in [
            ("", &["rbind", "rw"][..], &[][..]),
            ("relatime,nosymfollow", &["rbind"], &[]),
            (
                all,
                &["rbind", "rprivate", "ro"],
                &["nosuid", "nodev", "noexec", "nodiratime", "noatime"],
            ),
            (
                all,
                &["noexec", "rdev", "suid", "relatime"],
                &["nodiratime"],
            ),
            ("strictatime", &["bind"], &["strictatime"]),
            ("strictatime", &["bind", "rnoatime"], &[]),
            ("noatime", &["diratime"], &["noatime"]),
            // `relatime` is an option of its own, and not the recursive form of another one.
            ("nodev", &["relatime", "rw"], &["nodev"]),
            ("users", &[], &["nosuid", "nodev", "noexec"]),
        ] {
            let attributes = parse(&[volume].map(|list| if list.is_empty() { "rw" } else { list }));
            let attributes = attributes.unwrap().attributes;
            assert_eq!(
                missing_bind_options(attributes, mount),
                expected,
                "{volume} {mount:?}"
            );
        }
    }
}

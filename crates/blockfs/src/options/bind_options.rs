//! Attributes of a volume's mount, as options of the bind mount that shows it to a container.
//!
//! runc and crun mount a bind twice: the second time, which is a remount, sets the attributes that the
//! options name and clears the others (`MS_REMOUNT | MS_BIND`, mount(2)). What the volume's own mount
//! has is lost then, unless the options say it again.

use rustix::mount::MountAttrFlags;

/// An attribute and its option.
struct Word {
    option: &'static str,
    attribute: MountAttrFlags,
    /// The bits that the attribute is one value of.
    mask: MountAttrFlags,
    /// The options that say something else of the same attribute.
    others: &'static [&'static str],
}

const fn flag(
    option: &'static str,
    attribute: MountAttrFlags,
    others: &'static [&'static str],
) -> Word {
    Word {
        option,
        attribute,
        mask: attribute,
        others,
    }
}

const fn atime(option: &'static str, attribute: MountAttrFlags) -> Word {
    Word {
        option,
        attribute,
        mask: MountAttrFlags::MOUNT_ATTR__ATIME,
        others: &[
            "atime",
            "noatime",
            "relatime",
            "norelatime",
            "strictatime",
            "nostrictatime",
        ],
    }
}

/// The words that runc 1.1 and crun 1.8 and all later ones know: an unknown one would be passed on to
/// mount(2) as data. So `nosymfollow`, which crun doesn't know, isn't among them.
const WORDS: [Word; 6] = [
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

impl Word {
    /// Whether an option is about the same attribute, of this mount or of all below it (`rnosuid`).
    fn is_meant_by(&self, option: &str) -> bool {
        let is = |option: &str| option == self.option || self.others.contains(&option);
        is(option) || option.strip_prefix('r').is_some_and(is)
    }
}

/// Returns the options that a bind mount needs to keep the attributes of what it binds, beside the
/// `options` that it has. An option that says something of an attribute itself counts.
#[must_use]
pub fn missing_bind_options<S: AsRef<str>>(
    attributes: MountAttrFlags,
    options: &[S],
) -> Vec<&'static str> {
    let wanted = WORDS
        .iter()
        .filter(|word| attributes.intersection(word.mask) == word.attribute);
    let is_said = |word: &Word| options.iter().any(|it| word.is_meant_by(it.as_ref()));
    let missing = wanted.filter(|word| !is_said(word));
    missing.map(|word| word.option).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::parse;

    #[test]
    fn what_a_mount_does_not_say_is_taken_from_the_volume() {
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
            // `relatime` is a word of its own, and not the recursive form of another.
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

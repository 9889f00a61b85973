//! Parses mount options as users write them (mount(8), "FILESYSTEM-INDEPENDENT MOUNT OPTIONS") into the form that the
//! mount API needs.

mod bind_options;
mod error;
mod lists;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rustix::mount::MountAttrFlags;

use crate::fstypes::{self, OptionRules};
pub use bind_options::missing_bind_options;
pub use error::OptionsError;
pub use lists::for_storage;
pub use table::SUPERBLOCK_FLAGS;
use table::{OptionMeaning, SuperblockFlag};

/// The length in bytes of the longest key or value that fsconfig(2) accepts.
const MAX_STRING_LENGTH: usize = 255;

/// Mount options in the form that the mount API needs. The default is a plain read-write mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The attributes for fsmount(2), except for read-only.
    pub attributes: MountAttrFlags,
    /// Whether the whole superblock is read-only.
    pub read_only: bool,
    /// The options for fsconfig(2) in their order, followed by the generic superblock flags (`sync`, `dirsync`,
    /// `lazytime`, `mand`).
    pub fs_options: Vec<FsOption>,
}

/// An option that is passed to the file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FsOption {
    /// An option without a value, such as `discard`.
    Flag(String),
    /// An option with a value, such as `commit=30`.
    Value {
        /// The name, before the first `=`.
        key: String,
        /// The value, which may be empty.
        value: String,
    },
}

impl FsOption {
    /// Parses an option in the form in which [`Display`](fmt::Display) writes it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::Value {
                key: key.to_owned(),
                value: value.to_owned(),
            },
            None => Self::Flag(text.to_owned()),
        }
    }

    /// Returns the name, without the value.
    #[must_use]
    pub fn key(&self) -> &str {
        self.parts().0
    }

    /// Returns the value; `None` for an option without one.
    #[must_use]
    pub fn value(&self) -> Option<&str> {
        self.parts().1
    }

    /// Returns the name, and the value if there is one.
    pub(crate) fn parts(&self) -> (&str, Option<&str>) {
        match self {
            Self::Flag(key) => (key, None),
            Self::Value { key, value } => (key, Some(value)),
        }
    }
}

impl fmt::Display for FsOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) => f.write_str(key),
            Self::Value { key, value } => write!(f, "{key}={value}"),
        }
    }
}

/// Parses a list of options. Each item may contain several options that are separated by commas. If options contradict
/// each other, the last one wins.
///
/// As in mount(8), a comma in double quotes doesn't separate options: `context="u:r:t:s0:c1,c2"`. The quotes are
/// removed.
pub fn parse<S: AsRef<str>>(list: &[S]) -> Result<MountOptions, OptionsError> {
    let mut options = MountOptions::default();
    let mut superblock = BTreeSet::new();
    let mut position = 0;
    for (index, item) in list.iter().enumerate() {
        let item = item.as_ref();
        if item.contains('\0') {
            return Err(OptionsError::Nul {
                position: index + 1,
            });
        }
        for option in lists::split_at_commas(item) {
            let option = option.ok_or(OptionsError::Quote {
                position: index + 1,
            })?;
            position += 1;
            options.add(option, position, &mut superblock)?;
        }
    }
    let flags = superblock
        .iter()
        .map(|flag: &SuperblockFlag| FsOption::Flag(flag.name().to_owned()));
    options.fs_options.extend(flags);
    Ok(options)
}

/// Splits a superblock's options as the kernel shows them, and removes the quotes that it puts around a label with
/// commas. Returns `None` if a quotation isn't closed.
#[must_use]
pub fn parse_shown(options: &str) -> Option<Vec<String>> {
    let unquoted = |option: &str| match option.split_once('=') {
        Some((key, value)) => format!("{key}={}", lists::unquote(value)),
        None => option.to_owned(),
    };
    lists::split_at_commas(options)
        .map(|option| option.map(unquoted))
        .collect()
}

/// The attributes, and the options that set them.
const ATTRIBUTES: [(MountAttrFlags, &str); 7] = [
    (MountAttrFlags::MOUNT_ATTR_NOSUID, "nosuid"),
    (MountAttrFlags::MOUNT_ATTR_NODEV, "nodev"),
    (MountAttrFlags::MOUNT_ATTR_NOEXEC, "noexec"),
    (MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW, "nosymfollow"),
    (MountAttrFlags::MOUNT_ATTR_NODIRATIME, "nodiratime"),
    (MountAttrFlags::MOUNT_ATTR_NOATIME, "noatime"),
    (MountAttrFlags::MOUNT_ATTR_STRICTATIME, "strictatime"),
];

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            attributes: MountAttrFlags::empty(),
            read_only: false,
            fs_options: Vec::new(),
        }
    }
}

impl MountOptions {
    fn add(
        &mut self,
        option: &str,
        position: usize,
        superblock: &mut BTreeSet<SuperblockFlag>,
    ) -> Result<(), OptionsError> {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(lists::unquote(value))),
            None => (option, None),
        };
        if key.is_empty() {
            return Err(OptionsError::NoName { position });
        }
        check_length(key, value)?;
        let meaning = match table::refused_value(key, value) {
            Some(reason) => OptionMeaning::Refused(reason),
            None => table::meaning(key),
        };
        if value.is_some() && meaning.is_generic() {
            return Err(OptionsError::UnexpectedValue {
                option: key.to_owned(),
            });
        }
        match meaning {
            OptionMeaning::ReadOnly(read_only) => self.read_only = read_only,
            OptionMeaning::Attribute { set, clear } => {
                self.attributes = self.attributes.difference(clear).union(set);
            }
            OptionMeaning::Superblock { flag, on: true } => _ = superblock.insert(flag),
            OptionMeaning::Superblock { flag, on: false } => _ = superblock.remove(&flag),
            OptionMeaning::Ignored => {}
            OptionMeaning::Refused(reason) => {
                let option = key.to_owned();
                return Err(OptionsError::Refused { option, reason });
            }
            OptionMeaning::Secret => {
                return Err(OptionsError::Secret {
                    option: key.to_owned(),
                });
            }
            OptionMeaning::FileSystem => self.fs_options.push(match value {
                None => FsOption::Flag(key.to_owned()),
                Some(value) => FsOption::Value {
                    key: key.to_owned(),
                    value: value.to_owned(),
                },
            }),
        }
        Ok(())
    }

    /// Returns these options, with the option that keeps `fstype` from replaying its journal. Adds nothing if they
    /// already contain such an option, or if the file system has none.
    ///
    /// Without that option, a read-only mount with a dirty journal writes to the device, and fails with EROFS if the
    /// device is read-only.
    #[must_use]
    pub fn without_journal_replay(&self, fstype: &str) -> Self {
        let mut options = self.clone();
        let Some(option) = no_journal_replay(fstype) else {
            return options;
        };
        let is_alternative = |key| {
            let mut rules = fstypes::option_rules();
            rules.any(|rules| {
                rules.no_journal_replay == Some(key)
                    || rules.no_journal_replay_aliases.contains(&key)
            })
        };
        let mut given = options.fs_options.iter();
        if !given.any(|given| *given == option || is_alternative(given.key())) {
            options.fs_options.push(option);
        }
        options
    }

    /// Returns the file system's options in a canonical form, in which only the last one of contradicting options is
    /// left.
    ///
    /// Two mounts of a device can share a superblock if these options are equal and both or neither are read-only. The
    /// kernel doesn't compare options: the second mount succeeds, and its options are ignored
    /// (docs/architecture.md, "Devices").
    ///
    /// Attributes are left out, since each mount has its own. So are options that only matter while the superblock is
    /// created, such as xfs's `nouuid`.
    #[must_use]
    pub fn superblock_options(&self) -> Vec<String> {
        let mut slots: BTreeMap<&str, BTreeSet<&FsOption>> = BTreeMap::new();
        let has = |of: fn(&OptionRules) -> &'static [&'static str], key: &str| {
            fstypes::option_rules().any(|rules| of(rules).contains(&key))
        };
        for option in &self.fs_options {
            let key = option.key();
            if has(|rules| rules.not_compared, key) {
                continue;
            }
            let slot = slots
                .entry(key.strip_prefix("no").unwrap_or(key))
                .or_default();
            if !has(|rules| rules.cumulative, key) {
                slot.clear();
            }
            slot.insert(option);
        }
        slots
            .into_values()
            .flatten()
            .map(FsOption::to_string)
            .collect()
    }
}

impl MountOptions {
    /// Returns all options in a canonical form and order, which is the same for lists with the same meaning.
    #[must_use]
    pub fn canonical(&self) -> Vec<String> {
        let set = ATTRIBUTES
            .iter()
            .filter(|(flag, _)| self.attributes.contains(*flag));
        let attributes = set.map(|(_, name)| (*name).to_owned());
        let read_only = self.read_only.then(|| "ro".to_owned());
        let mut all = self.superblock_options();
        all.extend(attributes.chain(read_only));
        all
    }
}

/// The options that set SELinux labels (mount(8)). Any of them keeps [`MountOptions::with_label`] from adding
/// `context`.
pub const LABEL_OPTIONS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

impl MountOptions {
    /// Returns these options with an SELinux label for all files, unless they already set a label. The label that
    /// kubelet passed when the volume was staged takes precedence (KEP-1710).
    ///
    /// The value is not quoted: in fsconfig(2), commas don't separate options.
    pub fn with_label(&self, label: &str) -> Result<Self, OptionsError> {
        let mut options = self.clone();
        if !options
            .fs_options
            .iter()
            .any(|option| LABEL_OPTIONS.contains(&option.key()))
        {
            check_length("context", Some(label))?;
            options.fs_options.push(FsOption::Value {
                key: "context".to_owned(),
                value: label.to_owned(),
            });
        }
        Ok(options)
    }
}

/// Returns the option that keeps a read-only mount of `fstype` from replaying its journal; `None` if the file system
/// has no journal or isn't known.
#[must_use]
pub fn no_journal_replay(fstype: &str) -> Option<FsOption> {
    let option = fstypes::find(fstype)?.options.no_journal_replay?;
    Some(FsOption::parse(option))
}

fn check_length(key: &str, value: Option<&str>) -> Result<(), OptionsError> {
    for text in [Some(key), value].into_iter().flatten() {
        if text.len() > MAX_STRING_LENGTH {
            return Err(OptionsError::TooLong {
                option: key.chars().take(32).collect(),
                length: text.len(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;

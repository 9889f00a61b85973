//! Mount options as people write them, sorted into what the mount API wants (mount(8),
//! "FILESYSTEM-INDEPENDENT MOUNT OPTIONS").

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
use table::{Meaning, SuperblockOption};

/// fsconfig(2) takes no longer string, key or value, in bytes.
const LONGEST: usize = 255;

/// A list of mount options, sorted for the mount API. The default is a plain read-write mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// For fsmount(2). Read-only isn't among them: see `read_only`.
    pub attributes: MountAttrFlags,
    /// The whole superblock is read-only.
    pub read_only: bool,
    /// For fsconfig(2), in the order given; generic superblock flags (`sync`, `dirsync`,
    /// `lazytime`, `mand`) come last.
    pub fs_options: Vec<FsOption>,
}

/// One option of the file system's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum FsOption {
    /// `discard`.
    Flag(String),
    /// `commit=30`.
    Value {
        /// Before the first `=`.
        key: String,
        /// After it; may be empty.
        value: String,
    },
}

impl FsOption {
    /// Reads back what [`Display`](fmt::Display) wrote.
    #[must_use]
    pub fn of(text: &str) -> Self {
        match text.split_once('=') {
            Some((key, value)) => Self::Value {
                key: key.to_owned(),
                value: value.to_owned(),
            },
            None => Self::Flag(text.to_owned()),
        }
    }

    /// The name, without the value.
    #[must_use]
    pub fn key(&self) -> &str {
        self.parts().0
    }

    /// The name, and the value if it has one.
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

/// Translates a list of options, each of which may itself be comma separated. Where two contradict
/// each other the last one counts. Double quotes keep commas together, as in mount(8):
/// `context="u:r:t:s0:c1,c2"`; the quotes are taken off.
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
        for option in lists::at_commas(item) {
            let option = option.ok_or(OptionsError::Quote {
                position: index + 1,
            })?;
            position += 1;
            options.add(option, position, &mut superblock)?;
        }
    }
    let flags = superblock
        .iter()
        .map(|flag: &SuperblockOption| FsOption::Flag(flag.name().to_owned()));
    options.fs_options.extend(flags);
    Ok(options)
}

/// A superblock's options as the kernel shows them, without the quotation marks that it puts around a
/// label with commas; `None` where they aren't closed.
#[must_use]
pub fn parse_shown(options: &str) -> Option<Vec<String>> {
    let unquoted = |option: &str| match option.split_once('=') {
        Some((key, value)) => format!("{key}={}", lists::unquote(value)),
        None => option.to_owned(),
    };
    lists::at_commas(options)
        .map(|option| option.map(unquoted))
        .collect()
}

/// Attributes, and the options that set them.
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
        superblock: &mut BTreeSet<SuperblockOption>,
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
            Some(why) => Meaning::Refused(why),
            None => table::meaning(key),
        };
        if value.is_some() && meaning.is_generic() {
            return Err(OptionsError::NoValueWanted {
                option: key.to_owned(),
            });
        }
        match meaning {
            Meaning::ReadOnly(read_only) => self.read_only = read_only,
            Meaning::Attribute { set, clear } => {
                self.attributes = self.attributes.difference(clear).union(set);
            }
            Meaning::Superblock { flag, on: true } => _ = superblock.insert(flag),
            Meaning::Superblock { flag, on: false } => _ = superblock.remove(&flag),
            Meaning::Dropped => {}
            Meaning::Refused(why) => {
                let option = key.to_owned();
                return Err(OptionsError::NotAnOption { option, why });
            }
            Meaning::Secret => {
                return Err(OptionsError::Secret {
                    option: key.to_owned(),
                });
            }
            Meaning::FileSystem => self.fs_options.push(match value {
                None => FsOption::Flag(key.to_owned()),
                Some(value) => FsOption::Value {
                    key: key.to_owned(),
                    value: value.to_owned(),
                },
            }),
        }
        Ok(())
    }

    /// The same options, plus the one that keeps `fstype` from replaying its journal: a read-only
    /// mount with a dirty journal otherwise writes to the device, and fails with EROFS where that
    /// is itself read-only. Nothing is added where it is there already or there is none.
    #[must_use]
    pub fn without_journal_replay(&self, fstype: &str) -> Self {
        let mut options = self.clone();
        let Some(option) = no_journal_replay(fstype) else {
            return options;
        };
        let is_other_spelling = |key| {
            let mut rules = fstypes::option_rules();
            rules.any(|rules| {
                rules.no_journal_replay == Some(key) || rules.no_journal_replay_too.contains(&key)
            })
        };
        let mut given = options.fs_options.iter();
        if !given.any(|given| *given == option || is_other_spelling(given.key())) {
            options.fs_options.push(option);
        }
        options
    }

    /// The file system's own options in one form: of options that contradict each other only the
    /// last one counts, whatever stands between them. Two mounts of one device with the same ones,
    /// both read-only or neither, ask for the same superblock. The kernel doesn't compare: it lets
    /// the second mount succeed and ignores its options (docs/architecture.md, "Devices").
    /// Attributes are each mount's own and don't count; nor do options such as xfs's `nouuid`, which say how the
    /// superblock was come by and not what it is.
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
    /// The same options in one spelling and order: two lists that mean the same mount have the same.
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

/// The options that say what the files' SELinux labels are (mount(8)). One excludes `context`.
const LABELS: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

impl MountOptions {
    /// The same options with this SELinux label for all files, unless they say of labels themselves:
    /// what whoever staged the volume was told by kubelet counts (KEP-1710). In fsconfig(2) a value
    /// has no quotes, whatever commas are in it.
    pub fn with_label(&self, label: &str) -> Result<Self, OptionsError> {
        let mut options = self.clone();
        if !options
            .fs_options
            .iter()
            .any(|it| LABELS.contains(&it.key()))
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

/// The option with which a read-only mount of `fstype` leaves its journal alone; `None` where the
/// file system has no journal or we don't know it.
#[must_use]
pub fn no_journal_replay(fstype: &str) -> Option<FsOption> {
    let option = fstypes::find(fstype)?.options.no_journal_replay?;
    Some(FsOption::of(option))
}

fn check_length(key: &str, value: Option<&str>) -> Result<(), OptionsError> {
    for text in [Some(key), value].into_iter().flatten() {
        if text.len() > LONGEST {
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

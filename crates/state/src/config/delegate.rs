//! The keys of a configuration that are about the delegate.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, parse};

/// The OCI runtime that the delegate is. The kind decides how command lines and configs are read, what hooks are
/// given, and how errors are logged (docs/callers.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DelegateKind {
    /// runc. Its command line is urfave/cli's: v1 up to runc 1.5.0-rc.1, v3 in its main since spring 2026.
    Runc,
    /// crun. Its command line is argp's, over `getopt_long`.
    Crun,
    /// youki. Its command line is clap 4's: options and words in any order.
    Youki,
}

impl DelegateKind {
    /// All kinds, for tables and tests.
    pub const ALL: [Self; 3] = [Self::Runc, Self::Crun, Self::Youki];

    /// Returns the kind's name: its value in a configuration, and the first word of its `--version`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Youki => "youki",
        }
    }

    /// Returns the kind that has this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the kind that a file's name stands for, which is runc for any other name. The caller resolves links.
    #[must_use]
    pub fn of_file(path: &Path) -> Self {
        let name = path.file_name().map(OsStr::as_bytes).unwrap_or_default();
        if name == b"krun" || name.windows(4).any(|part| part == b"crun") {
            Self::Crun
        } else if name.windows(5).any(|part| part == b"youki") {
            Self::Youki
        } else {
            Self::Runc
        }
    }
}

/// The delegate, as a configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct DelegateSettings {
    /// The program; unset, the first one found.
    #[serde(rename = "delegate")]
    pub path: Option<PathBuf>,
    /// The kind of runtime that the program is; unset, its file's name decides.
    #[serde(rename = "delegate_kind")]
    pub kind: Option<DelegateKind>,
}

impl DelegateSettings {
    /// Reads the two keys from a file's text. Other keys may be unknown or wrong, but the file has to be TOML.
    pub(super) fn read(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let settings: Self = parse(file, text)?;
        settings.check(file)?;
        Ok(settings)
    }

    /// Fails where a kind is set without a program: which one is found then changes with what is installed.
    pub(super) fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let (None, Some(kind)) = (&self.path, self.kind) else {
            return Ok(());
        };
        let name = kind.name();
        Err(ConfigError::Value {
            path: file.to_owned(),
            key: "delegate_kind",
            reason: format!(
                "is set without `delegate`; hint: set `delegate` to where that {name} is"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<DelegateSettings, String> {
        DelegateSettings::read(Path::new("/etc/x.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_name_stands_for_a_kind() {
        for (path, kind) in [
            ("/usr/bin/runc", DelegateKind::Runc),
            ("/usr/bin/crun-1.28", DelegateKind::Crun),
            ("/usr/bin/krun", DelegateKind::Crun),
            ("/usr/bin/youki", DelegateKind::Youki),
            ("/usr/bin/oci-runtime", DelegateKind::Runc),
            ("/usr/bin/runcrust", DelegateKind::Runc),
            ("/opt/crun/runc", DelegateKind::Runc),
            ("/opt/youki/runc", DelegateKind::Runc),
        ] {
            assert_eq!(DelegateKind::of_file(Path::new(path)), kind, "{path}");
        }
    }

    /// Other keys don't matter, known or not.
    #[test]
    fn a_kind_is_read_beside_the_delegate() {
        let settings = |path: &str, kind| DelegateSettings {
            path: Some(path.into()),
            kind,
        };
        for (text, expected) in [
            ("", DelegateSettings::default()),
            (
                "delegate = \"/d\"\nno_such_key = true",
                settings("/d", None),
            ),
            (
                "delegate_kind = \"crun\"\ndelegate = \"/d\"",
                settings("/d", Some(DelegateKind::Crun)),
            ),
            (
                "delegate = '/d'\ndelegate_kind = 'youki'\nno_such_key = 1",
                settings("/d", Some(DelegateKind::Youki)),
            ),
        ] {
            assert_eq!(read(text), Ok(expected), "{text:?}");
        }
    }

    /// A wrong kind would have command lines read by a wrong grammar: nothing is guessed then.
    #[test]
    fn a_kind_that_cannot_be_used_is_named() {
        for (text, expected) in [
            (
                "delegate = \"/d\"\ndelegate_kind = \"kata\"",
                "/etc/x.toml: line 2: unknown variant `kata`, expected one of `runc`, `crun`, `youki`",
            ),
            (
                "delegate = \"/d\"\ndelegate_kind = \"Crun\"",
                "unknown variant `Crun`",
            ),
            (
                "delegate = \"/d\"\ndelegate_kind = \"\"",
                "unknown variant ``",
            ),
            (
                "delegate = \"/d\"\ndelegate_kind = true",
                "/etc/x.toml: line 2: ",
            ),
            (
                "delegate_kind = \"crun\"",
                "/etc/x.toml: delegate_kind: is set without `delegate`; hint: set `delegate` to \
                 where that crun is",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
            let whole = super::super::Config::parse(Path::new("/etc/x.toml"), text);
            assert_eq!(whole.unwrap_err().to_string(), error, "{text:?}");
        }
    }
}

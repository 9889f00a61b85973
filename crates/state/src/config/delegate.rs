//! The keys of a configuration about the delegate.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{ConfigError, parse};

/// The kind of OCI runtime that the delegate is. It decides how command lines and configs are parsed, which hooks are
/// added, and how errors are logged (docs/callers.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DelegateKind {
    /// runc, which parses its command line with urfave/cli: v1 up to runc 1.5.0-rc.1, v3 on its main branch since
    /// spring 2026.
    Runc,
    /// crun, which parses its command line with argp, on top of `getopt_long`.
    Crun,
    /// youki, which parses its command line with clap 4: options and positional arguments in any order.
    Youki,
}

impl DelegateKind {
    /// All kinds, for tables and tests.
    pub const ALL: [Self; 3] = [Self::Runc, Self::Crun, Self::Youki];

    /// Returns the name of the kind: its value in a configuration, and the first word of its `--version`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Youki => "youki",
        }
    }

    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the kind by the name of the delegate's file. It is runc for names that match no other kind. The caller
    /// has to resolve symbolic links.
    #[must_use]
    pub fn from_file_name(path: &Path) -> Self {
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

/// The keys of a configuration about the delegate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct DelegateSettings {
    /// The path of the delegate. If it is unset, the first OCI runtime that is found is used.
    #[serde(rename = "delegate")]
    pub path: Option<PathBuf>,
    /// The kind of the delegate. If it is unset, the name of its file decides.
    #[serde(rename = "delegate_kind")]
    pub kind: Option<DelegateKind>,
}

impl DelegateSettings {
    /// Parses the two keys. Other keys may be unknown or wrong, but the text has to be TOML.
    pub(super) fn read(file: &Path, text: &str) -> Result<Self, ConfigError> {
        let settings: Self = parse(file, text)?;
        settings.check(file)?;
        Ok(settings)
    }

    /// Fails if the kind is set without a path. Without a path runcrust searches for a delegate, and after the
    /// installation of another runtime it may find a runtime of another kind.
    pub(super) fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let (None, Some(kind)) = (&self.path, self.kind) else {
            return Ok(());
        };
        let name = kind.name();
        Err(ConfigError::Value {
            path: file.to_owned(),
            key: "delegate_kind",
            reason: format!(
                "is set without `delegate`; hint: set `delegate` to the path of {name}"
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
    fn the_kind_is_derived_from_the_file_name() {
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
            let derived = DelegateKind::from_file_name(Path::new(path));
            assert_eq!(derived, kind, "{path}");
        }
    }

    #[test]
    fn the_kind_is_parsed_despite_errors_in_other_keys() {
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

    /// With a wrong kind, command lines would be parsed by the wrong grammar.
    #[test]
    fn an_invalid_kind_is_an_error() {
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
                 the path of crun",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
            let whole = super::super::Config::parse(Path::new("/etc/x.toml"), text);
            assert_eq!(whole.unwrap_err().to_string(), error, "{text:?}");
        }
    }
}

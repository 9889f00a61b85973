//! Compares the kind of runtime that the delegate reports with the kind that runcrust treats it as.

use std::path::Path;

use crust_state::DelegateKind;
use crust_state::config::DelegateSettings;

use super::version::VersionReply;

/// The kind that runcrust treats a delegate as, and where that kind comes from.
#[derive(Debug)]
pub(crate) struct EffectiveKind<'a> {
    /// The delegate's path as configured or found.
    pub(crate) path: &'a Path,
    pub(crate) kind: DelegateKind,
    /// The settings in the configuration.
    pub(crate) configured: &'a DelegateSettings,
    /// The configuration file, for the hint.
    pub(crate) config_file: String,
}

/// A delegate that reports another kind than the effective one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KindMismatch {
    /// A sentence that describes the mismatch.
    pub(crate) found: String,
    /// The settings to write, and the file to write them to.
    pub(crate) hint: String,
}

impl EffectiveKind<'_> {
    /// Compares the kind with the delegate's `--version`. Returns `None` if they agree, or if the reply isn't that of
    /// a known runtime.
    pub(crate) fn mismatch(&self, reply: &VersionReply) -> Option<KindMismatch> {
        let VersionReply::Version(name, version) = reply else {
            return None;
        };
        let actual = DelegateKind::from_name(name).filter(|actual| *actual != self.kind)?;
        let (path, kind) = (self.path.display(), self.kind.name());
        let by = match self.configured.kind {
            Some(_) => "by `delegate_kind`",
            None => "by its file name (links resolved)",
        };
        Some(KindMismatch {
            found: format!(
                "{path} says that it is {name} {version}, but {by} it is treated as {kind}"
            ),
            hint: self.hint(actual),
        })
    }

    fn hint(&self, actual: DelegateKind) -> String {
        let kind = format!("delegate_kind = {:?}", actual.name());
        let lines = match &self.configured.path {
            Some(_) => kind,
            None => format!("delegate = {:?} and {kind}", self.path.to_string_lossy()),
        };
        format!("set {lines} in {}", self.config_file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(name: &str) -> VersionReply {
        VersionReply::Version(name.to_owned(), "1.2".to_owned())
    }

    fn effective(configured: &DelegateSettings, kind: DelegateKind) -> EffectiveKind<'_> {
        EffectiveKind {
            path: Path::new("/d"),
            kind,
            configured,
            config_file: "/etc/x.toml".to_owned(),
        }
    }

    #[test]
    fn a_mismatch_is_reported_with_the_settings_to_write() {
        let (by_name, by_key) = ("by its file name (links resolved)", "by `delegate_kind`");
        for (path, kind, by, lines) in [
            (
                None,
                None,
                by_name,
                "delegate = \"/d\" and delegate_kind = \"crun\"",
            ),
            (Some("/d"), None, by_name, "delegate_kind = \"crun\""),
            (
                Some("/d"),
                Some(DelegateKind::Runc),
                by_key,
                "delegate_kind = \"crun\"",
            ),
        ] {
            let path = path.map(Into::into);
            let configured = DelegateSettings { path, kind };
            let expected = KindMismatch {
                found: format!("/d says that it is crun 1.2, but {by} it is treated as runc"),
                hint: format!("set {lines} in /etc/x.toml"),
            };
            let mismatch = effective(&configured, DelegateKind::Runc).mismatch(&reply("crun"));
            assert_eq!(mismatch, Some(expected));
        }
    }

    #[test]
    fn only_another_known_kind_is_a_mismatch() {
        let configured = DelegateSettings::default();
        for kind in DelegateKind::ALL {
            for actual in DelegateKind::ALL {
                let mismatch = effective(&configured, kind).mismatch(&reply(actual.name()));
                assert_eq!(mismatch.is_some(), actual != kind, "{actual:?} as {kind:?}");
            }
            for reply in [
                reply("kata-runtime"),
                VersionReply::Unrecognized(String::new()),
                VersionReply::NotRun(String::new()),
            ] {
                assert_eq!(
                    effective(&configured, kind).mismatch(&reply),
                    None,
                    "{reply:?}"
                );
            }
        }
    }
}

//! Compares what the delegate says it is with the kind that it is treated as.

use std::path::Path;

use crust_state::DelegateKind;
use crust_state::config::DelegateSettings;

use super::version::VersionReply;

/// The kind in force of a delegate, and where it comes from.
#[derive(Debug)]
pub(crate) struct EffectiveKind<'a> {
    /// The delegate, as it was configured or found.
    pub(crate) path: &'a Path,
    /// The kind in force.
    pub(crate) kind: DelegateKind,
    /// The settings in the configuration.
    pub(crate) configured: &'a DelegateSettings,
    /// The configuration's file, for a hint.
    pub(crate) config_file: String,
}

/// A delegate is of another kind than the one in force.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct KindMismatch {
    /// The sentence that says so.
    pub(crate) found: String,
    /// The lines to write, and the file.
    pub(crate) hint: String,
}

impl EffectiveKind<'_> {
    /// Compares the kind in force with what the delegate says. Returns `None` where they agree, and where it says
    /// nothing that is known.
    pub(crate) fn mismatch(&self, said: &VersionReply) -> Option<KindMismatch> {
        let VersionReply::Version(name, version) = said else {
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
                "{path} says that it is {name} {version}, and {by} it is treated as {kind}"
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

    fn said(name: &str) -> VersionReply {
        VersionReply::Version(name.to_owned(), "1.2".to_owned())
    }

    fn identity(configured: &DelegateSettings, kind: DelegateKind) -> EffectiveKind<'_> {
        EffectiveKind {
            path: Path::new("/d"),
            kind,
            configured,
            config_file: "/etc/x.toml".to_owned(),
        }
    }

    #[test]
    fn another_kind_is_told_with_the_lines_to_write() {
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
                found: format!("/d says that it is crun 1.2, and {by} it is treated as runc"),
                hint: format!("set {lines} in /etc/x.toml"),
            };
            let mismatch = identity(&configured, DelegateKind::Runc).mismatch(&said("crun"));
            assert_eq!(mismatch, Some(expected));
        }
    }

    #[test]
    fn each_kind_is_itself_alone() {
        let configured = DelegateSettings::default();
        for kind in DelegateKind::ALL {
            for actual in DelegateKind::ALL {
                let mismatch = identity(&configured, kind).mismatch(&said(actual.name()));
                assert_eq!(mismatch.is_some(), actual != kind, "{actual:?} as {kind:?}");
            }
            for said in [
                said("kata-runtime"),
                VersionReply::Unrecognized(String::new()),
                VersionReply::NotRun(String::new()),
            ] {
                assert_eq!(
                    identity(&configured, kind).mismatch(&said),
                    None,
                    "{said:?}"
                );
            }
        }
    }
}

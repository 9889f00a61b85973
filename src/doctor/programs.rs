//! Checks the programs that runcrust runs: the delegate, with the control groups that it finds, and the hook.

use std::ffi::OsString;

use crust_state::check::{self, CheckVerdict, Finding};
use crust_state::config::DelegateSettings;
use crust_state::{Config, DelegateKind};

use super::cgroups;
use crate::delegate::Delegate;
use crate::delegate::effective_kind::EffectiveKind;
use crate::delegate::version::{VersionReply, check_executes, query_version};
use crate::programs;

const CHECK: &str = "delegate";

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let configured = config.delegate_settings();
    let found = Delegate::find(&configured);
    let kind = found.as_ref().map(Delegate::kind).ok().or(configured.kind);
    let finding = match found {
        Ok(delegate) => {
            let file = config
                .source
                .as_ref()
                .map(|file| file.display().to_string());
            check_delegate(&delegate, &configured, file)
        }
        Err(error) => Finding::from_error(CHECK, &error),
    };
    vec![finding, cgroups::check(kind.unwrap_or(DelegateKind::Runc))]
}

/// Checks only the delegate. This works even if the rest of the configuration is invalid.
pub(super) fn check_only(argv0: Option<&OsString>) -> Finding {
    let found = Config::load_delegate(argv0).map_err(anyhow::Error::from);
    let found = found.and_then(|configured| Ok((Delegate::find(&configured)?, configured)));
    match found {
        Ok((delegate, configured)) => check_delegate(&delegate, &configured, None),
        Err(error) => Finding::from_error(CHECK, error.as_ref()),
    }
}

/// Checks that the delegate is a trusted program, and that it is the kind of runtime that it is treated as. `file` is
/// the configuration's path, if it is known.
fn check_delegate(
    delegate: &Delegate,
    configured: &DelegateSettings,
    file: Option<String>,
) -> Finding {
    let hint = "set `delegate` in runcrust's configuration to the path of runc or crun";
    let trusted = check::program(CHECK, delegate.path(), hint);
    if trusted.verdict != CheckVerdict::Pass {
        return trusted;
    }
    let identity = EffectiveKind {
        path: delegate.path(),
        kind: delegate.kind(),
        configured,
        config_file: file.unwrap_or_else(|| "runcrust's configuration".to_owned()),
    };
    judge(&identity, &query_version(delegate.path()))
}

/// The kind has to be right, because it decides how command lines are parsed.
fn judge(identity: &EffectiveKind<'_>, reply: &VersionReply) -> Finding {
    if let Some(mismatch) = identity.mismatch(reply) {
        return Finding::fail(CHECK, mismatch.found, mismatch.hint);
    }
    let (path, kind) = (identity.path.display(), identity.kind.name());
    match reply {
        VersionReply::Version(program, version) if program == kind => {
            Finding::pass(CHECK, format!("{path}, {kind} {version}"))
        }
        VersionReply::Version(program, version) => Finding::warn(
            CHECK,
            format!(
                "{path} is {program} {version}, which isn't tested with runcrust; it is treated as {kind}"
            ),
            "use runc, crun or youki",
        ),
        VersionReply::NotRun(reason) => Finding::fail(
            CHECK,
            format!("{path} --version: {reason}: no container starts with it"),
            "run that command by hand; install runc or crun for this architecture, or set \
             `delegate` in runcrust's configuration to the path of one",
        ),
        VersionReply::Unrecognized(reason) => Finding::warn(
            CHECK,
            format!("{path} --version: {reason}"),
            "check that it is an OCI runtime; use runc, crun or youki",
        ),
    }
}

const HOOK: &str = "hook";

pub(super) fn check_hook(config: &Config) -> Finding {
    match programs::find_hook(config) {
        Ok(program) => {
            let hint = "install crust-mount-hook beside runcrust";
            let finding = check::program(HOOK, &program, hint);
            if finding.verdict != CheckVerdict::Pass {
                return finding;
            }
            match check_executes(&program) {
                Ok(()) => finding,
                Err(error) => {
                    let found = format!("{}: execve: {error}", program.display());
                    Finding::fail(
                        HOOK,
                        found,
                        "install crust-mount-hook for this architecture",
                    )
                }
            }
        }
        Err(error) => Finding::from_error(HOOK, error.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_delegate_has_to_be_of_the_effective_kind() {
        let version = |program: &str| VersionReply::Version(program.into(), "1.2".into());
        for (kind, reply, expected) in [
            (
                DelegateKind::Runc,
                version("runc"),
                "pass  delegate: /d, runc 1.2",
            ),
            (
                DelegateKind::Youki,
                version("youki"),
                "pass  delegate: /d, youki 1.2",
            ),
            (
                DelegateKind::Runc,
                version("crun"),
                "FAIL  delegate: /d says that it is crun 1.2, but by its file name (links resolved) it is treated as \
                 runc; hint: set delegate = \"/d\" and delegate_kind = \"crun\" in /etc/x.toml",
            ),
            (
                DelegateKind::Runc,
                version("kata-runtime"),
                "warn  delegate: /d is kata-runtime",
            ),
            (
                DelegateKind::Runc,
                VersionReply::Unrecognized("still running".into()),
                "warn  delegate: /d --version: still running; hint: ",
            ),
            (
                DelegateKind::Runc,
                VersionReply::NotRun("Exec format error".into()),
                "FAIL  delegate: /d --version: Exec format error: no container",
            ),
        ] {
            let identity = EffectiveKind {
                path: Path::new("/d"),
                kind,
                configured: &DelegateSettings::default(),
                config_file: "/etc/x.toml".to_owned(),
            };
            let line = judge(&identity, &reply).to_string();
            assert!(line.starts_with(expected), "{line}");
        }
    }
}

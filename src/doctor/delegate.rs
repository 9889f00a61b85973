//! The delegate, and the control groups that it finds.

pub(super) mod version;

use std::ffi::OsString;
use std::path::Path;

use crust_state::Config;
use crust_state::check::{self, Finding, Verdict};

use super::cgroups;
use crate::delegate::Delegate;
use crate::invocation::Flavour;
use version::Said;

const WHAT: &str = "delegate";

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let found = Delegate::find(config.delegate.as_deref());
    let flavour = found.as_ref().map_or(Flavour::Runc, Delegate::flavour);
    let finding = match found {
        Ok(delegate) => look(&delegate),
        Err(error) => Finding::failed(WHAT, &error),
    };
    vec![finding, cgroups::check(flavour)]
}

/// Where nothing else of the configuration can be read.
pub(super) fn check_only(argv0: Option<&OsString>) -> Finding {
    let found = Config::load_delegate(argv0).map_err(anyhow::Error::from);
    let found = found.and_then(|path| Ok(Delegate::find(path.as_deref())?));
    match found {
        Ok(delegate) => look(&delegate),
        Err(error) => Finding::failed(WHAT, error.as_ref()),
    }
}

fn look(delegate: &Delegate) -> Finding {
    let hint = "set `delegate` in runcrust's configuration to where runc or crun is";
    let trusted = check::program(WHAT, delegate.path(), hint);
    if trusted.verdict != Verdict::Pass {
        return trusted;
    }
    judge(
        delegate.path(),
        delegate.flavour(),
        &version::ask(delegate.path()),
    )
}

/// The delegates whose command lines are read by a grammar of their own.
const KNOWN: [&str; 3] = ["runc", "crun", "youki"];

/// The file's name decides how command lines are read, and has to be right about that.
fn judge(path: &Path, flavour: Flavour, said: &Said) -> Finding {
    let path = path.display();
    let own = match flavour {
        Flavour::Runc => "runc",
        Flavour::Crun => "crun",
        Flavour::Youki => "youki",
    };
    match said {
        Said::Version(program, version) if program == own => {
            Finding::pass(WHAT, format!("{path}, {own} {version}"))
        }
        Said::Version(program, version) if KNOWN.contains(&&**program) => Finding::fail(
            WHAT,
            format!(
                "{path} says that it is {program} {version}, and by its file's name its command \
                 line is read as {own}'s"
            ),
            format!("name a file that is called after {program}, or a link to one"),
        ),
        Said::Version(program, version) => Finding::warn(
            WHAT,
            format!("{path} is {program} {version}, which wasn't tried; it is called as {own} is"),
            "runc, crun and youki are known",
        ),
        Said::NotRun(why) => Finding::fail(
            WHAT,
            format!("{path} --version: {why}: no container starts with it"),
            "run that command by hand; install runc or crun for this architecture, or set \
             `delegate` in runcrust's configuration to where one is",
        ),
        Said::Nothing(why) => Finding::warn(
            WHAT,
            format!("{path} --version: {why}"),
            "is it an OCI runtime? runc, crun and youki are known",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_to_be_right_about_the_grammar() {
        let version = |program: &str| Said::Version(program.into(), "1.2".into());
        for (flavour, said, expected) in [
            (
                Flavour::Runc,
                version("runc"),
                "pass  delegate: /d, runc 1.2",
            ),
            (
                Flavour::Crun,
                version("crun"),
                "pass  delegate: /d, crun 1.2",
            ),
            (
                Flavour::Runc,
                version("crun"),
                "FAIL  delegate: /d says that it is crun 1.2, and by",
            ),
            (Flavour::Crun, version("runc"), "FAIL  delegate: /d says"),
            (
                Flavour::Youki,
                version("youki"),
                "pass  delegate: /d, youki 1.2",
            ),
            (
                Flavour::Runc,
                version("youki"),
                "FAIL  delegate: /d says that it is youki 1.2, and by",
            ),
            (Flavour::Youki, version("runc"), "FAIL  delegate: /d says"),
            (
                Flavour::Runc,
                version("kata-runtime"),
                "warn  delegate: /d is kata-runtime",
            ),
            (
                Flavour::Runc,
                Said::Nothing("no answer".into()),
                "warn  delegate: /d --version: no answer; hint: ",
            ),
            (
                Flavour::Runc,
                Said::NotRun("Exec format error".into()),
                "FAIL  delegate: /d --version: Exec format error: no container",
            ),
        ] {
            let line = judge(Path::new("/d"), flavour, &said).to_string();
            assert!(line.starts_with(expected), "{line}");
        }
    }
}

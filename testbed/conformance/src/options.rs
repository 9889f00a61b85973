//! The options of a run. `make conformance` passes its variables on in the environment.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::groups;
use crate::requirement::{Group, Requirement};
use crate::suite::Suite;

const USAGE: &str = "\
usage: RUNTIME=/path [NAME=VALUE…] conformance [--json | --list]

  RUNTIME        the runtime's program, absolute
  RUNTIME_FLAGS  flags that it needs before its command, separated by blanks
  CRUST_ROOT     the crust directory that it reads (/run/crust)
  KUBELET_DIR    the kubelet's directory that it expects volumes in (/var/lib/kubelet)
  ONLY           ids of requirements, or names of groups, separated by commas
  TIMEOUT        seconds that each of its commands may take (60)

  --json         the report as JSON
  --list         the requirements, and nothing is run";

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Text,
    Json,
    List,
}

/// All options.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) suite: Suite,
    pub(crate) output: Output,
    pub(crate) selection: Selection,
}

/// The requirements in their groups, or those that `ONLY` names.
#[derive(Debug)]
pub(crate) struct Selection(Vec<String>);

/// A wrong use of the program.
#[derive(Debug)]
pub(crate) struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n\n{USAGE}", self.0)
    }
}

impl Options {
    pub(crate) fn read() -> Result<Self, Usage> {
        let mut output = Output::Text;
        for argument in env::args().skip(1) {
            output = match &*argument {
                "--json" => Output::Json,
                "--list" => Output::List,
                other => return Err(Usage(format!("{other}: unknown"))),
            };
        }
        let runtime = if output == Output::List {
            PathBuf::new()
        } else {
            program(&variable("RUNTIME").ok_or(Usage("RUNTIME isn't set".to_owned()))?)?
        };
        let path = |name: &str, default: &str| absolute(name, variable(name).as_deref(), default);
        let seconds = variable("TIMEOUT").map_or(Ok(60), |text| {
            let bad = |error| Usage(format!("TIMEOUT={text}: {error}"));
            text.parse().map_err(bad)
        })?;
        let flags = variable("RUNTIME_FLAGS").unwrap_or_default();
        Ok(Self {
            suite: Suite {
                runtime,
                flags: flags.split_whitespace().map(str::to_owned).collect(),
                crust_root: path("CRUST_ROOT", "/run/crust")?,
                kubelet_dir: path("KUBELET_DIR", "/var/lib/kubelet")?,
                limit: Duration::from_secs(seconds),
            },
            output,
            selection: Selection::read(&variable("ONLY").unwrap_or_default())?,
        })
    }
}

impl Selection {
    fn read(only: &str) -> Result<Self, Usage> {
        let names = only.split([',', ' ']).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let known = |name: &String| {
            groups::ALL.iter().any(|group| {
                let mut requirements = group.requirements.iter();
                group.name == name || requirements.any(|requirement| requirement.id == name)
            })
        };
        match names.iter().find(|name| !known(name)) {
            Some(name) => Err(Usage(format!(
                "ONLY={only}: {name} is neither a requirement nor a group of them"
            ))),
            None => Ok(Self(names)),
        }
    }

    /// Returns the selected requirements with their groups, in the order of the table.
    pub(crate) fn requirements(
        &self,
    ) -> impl Iterator<Item = (&'static Group, &'static Requirement)> {
        let all = groups::ALL.iter().flat_map(|group| {
            let requirements = group.requirements.iter();
            requirements.map(move |requirement| (*group, requirement))
        });
        all.filter(|(group, requirement)| {
            let mut names = self.0.iter();
            self.0.is_empty() || names.any(|name| name == group.name || name == requirement.id)
        })
    }
}

/// One that is set and empty isn't: make passes them all on.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn program(path: &str) -> Result<PathBuf, Usage> {
    let program = PathBuf::from(path);
    if !program.is_absolute() || !program.is_file() {
        return Err(Usage(format!(
            "RUNTIME={path}: there is no such program; hint: give its absolute path"
        )));
    }
    Ok(program)
}

fn absolute(name: &str, value: Option<&str>, default: &str) -> Result<PathBuf, Usage> {
    let path = PathBuf::from(value.unwrap_or(default));
    if path.is_absolute() && path != Path::new("/") {
        return Ok(path);
    }
    Err(Usage(format!(
        "{name}={}: isn't an absolute path of a directory of its own",
        path.display()
    )))
}

//! The options of a run. `make conformance` passes its variables on in the environment.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::groups;
use crate::requirement::{Group, Requirement, RequirementKind};
use crate::suite::Suite;

const USAGE: &str = "\
usage: RUNTIME=/path [NAME=VALUE…] conformance [--json | --list]

  RUNTIME        absolute path of the runtime
  RUNTIME_FLAGS  flags before the runtime's command, separated by blanks
  CRUST_ROOT     the runtime's crust directory (default: /run/crust)
  KUBELET_DIR    the directory in which the runtime expects pods' volumes (default: /var/lib/kubelet)
  ONLY           ids of requirements and names of groups, separated by commas (default: all)
  SHARE          server:/path of an NFS share that root of this node may write, for the requirements about
                 network volumes (default: they are left out)
  TIMEOUT        timeout in seconds of each command, and of each expected effect (default: 60)

  --json         print the report as JSON
  --list         list the requirements without running them";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Text,
    Json,
    List,
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) suite: Suite,
    pub(crate) output: Output,
    pub(crate) selection: Selection,
}

/// The requirements that `ONLY` selects.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The names of groups and ids, or empty for all.
    names: Vec<String>,
    has_share: bool,
}

/// A mistake on the command line or in the environment.
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
                other => return Err(Usage(format!("{other}: unknown argument"))),
            };
        }
        let runtime = if output == Output::List {
            PathBuf::new()
        } else {
            program(&variable("RUNTIME").ok_or(Usage("RUNTIME is not set".to_owned()))?)?
        };
        let path = |name: &str, default: &str| {
            parse_absolute_path(name, variable(name).as_deref(), default)
        };
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
                timeout: Duration::from_secs(seconds),
                share: variable("SHARE"),
            },
            // The list has all of them.
            selection: Selection::read(
                &variable("ONLY").unwrap_or_default(),
                variable("SHARE").is_some() || output == Output::List,
            )?,
            output,
        })
    }
}

impl Selection {
    fn read(only: &str, has_share: bool) -> Result<Self, Usage> {
        let names = only.split([',', ' ']).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        let known = |name: &String| {
            groups::ALL.iter().any(|group| {
                let mut requirements = group.requirements.iter();
                group.name == name || requirements.any(|requirement| requirement.id == name)
            })
        };
        if let Some(name) = names.iter().find(|name| !known(name)) {
            return Err(Usage(format!(
                "ONLY={only}: {name} is neither the id of a requirement nor the name of a group"
            )));
        }
        let selection = Self { names, has_share };
        let mut chosen = selection.named().filter(|_| !selection.names.is_empty());
        if let Some((_, requirement)) = chosen.find(|it| !selection.can_check(it.1)) {
            return Err(Usage(format!(
                "ONLY={only}: {} needs a share; set SHARE=server:/path",
                requirement.id
            )));
        }
        drop(chosen);
        Ok(selection)
    }

    fn can_check(&self, requirement: &Requirement) -> bool {
        self.has_share || requirement.kind != RequirementKind::Network
    }

    /// Returns the selected requirements with their groups, in the order of the table.
    pub(crate) fn requirements(
        &self,
    ) -> impl Iterator<Item = (&'static Group, &'static Requirement)> {
        self.named()
            .filter(|(_, requirement)| self.can_check(requirement))
    }

    /// Returns the requirements that were named, or all.
    fn named(&self) -> impl Iterator<Item = (&'static Group, &'static Requirement)> {
        let all = groups::ALL.iter().flat_map(|group| {
            let requirements = group.requirements.iter();
            requirements.map(move |requirement| (*group, requirement))
        });
        all.filter(|(group, requirement)| {
            let mut names = self.names.iter();
            self.names.is_empty() || names.any(|name| name == group.name || name == requirement.id)
        })
    }
}

/// Returns a variable of the environment. An empty one counts as unset, because make passes all of its variables on.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn program(path: &str) -> Result<PathBuf, Usage> {
    let program = PathBuf::from(path);
    if !program.is_absolute() || !program.is_file() {
        return Err(Usage(format!(
            "RUNTIME={path}: not an absolute path of a file"
        )));
    }
    Ok(program)
}

fn parse_absolute_path(name: &str, value: Option<&str>, default: &str) -> Result<PathBuf, Usage> {
    let path = PathBuf::from(value.unwrap_or(default));
    if path.is_absolute() && path != Path::new("/") {
        return Ok(path);
    }
    Err(Usage(format!(
        "{name}={}: not an absolute path of a directory other than /",
        path.display()
    )))
}

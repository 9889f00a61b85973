//! The arguments of the commands that ask a running agent.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::objects::manifest::DEFAULT_NAMESPACE;

/// The commands that ask a running agent.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Show objects: pods, claims, volumes on this node, and others
    Get(Get),
    /// Apply manifests, and wait until their pods run
    Run(Run),
    /// Show what happened
    Events(Events),
    /// Show what a container has written
    Logs(Logs),
    /// Run a command in a container; it has neither standard input nor a terminal, what it writes is shown once
    /// it has ended, and its exit code is passed on
    Exec(Exec),
    /// Delete objects, and wait until they are gone
    Delete(Delete),
}

/// In which namespace.
#[derive(Debug, Args)]
pub(super) struct Namespace {
    /// In which namespace
    #[arg(short, long, value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub(super) namespace: String,
}

/// In which namespaces.
#[derive(Debug, Args)]
pub(super) struct Scope {
    #[command(flatten)]
    namespace: Namespace,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,
}

impl Scope {
    /// Empty is all.
    pub(super) fn namespace(&self) -> &str {
        if self.all_namespaces {
            ""
        } else {
            &self.namespace.namespace
        }
    }
}

/// The arguments of `crustlet get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// pods (po), persistentvolumeclaims (pvc), persistentvolumes (pv), volumes, storageclasses (sc),
    /// runtimeclasses, csidrivers, secrets or events (ev); of all of them, or of those that are named
    #[arg(value_name = "KIND [NAME]|KIND/NAME", required = true)]
    pub(super) objects: Vec<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
    /// How to show them; without it, a table
    #[arg(short, long, value_name = "FORM")]
    pub(super) output: Option<Output>,
    /// Without the line above the table
    #[arg(long)]
    pub(super) no_headers: bool,
}

/// How objects are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// The table, with more columns
    Wide,
    /// YAML
    Yaml,
    /// JSON
    Json,
    /// KIND/NAME, as other commands take it
    Name,
}

/// The arguments of `crustlet run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Manifests, YAML; - is standard input
    #[arg(value_name = "FILE|-", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Don't wait
    #[arg(long, conflicts_with = "timeout")]
    pub(super) no_wait: bool,
    /// How long to wait: 30s, 2m; without it, as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
}

/// The arguments of `crustlet events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Of one object; without it, of all
    #[arg(value_name = "KIND/NAME")]
    pub(super) object: Option<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
    /// What happens from now on, too, until interrupted
    #[arg(short, long)]
    pub(super) watch: bool,
    /// How to show them; without it, a table
    #[arg(short, long, value_name = "FORM")]
    pub(super) output: Option<EventOutput>,
    /// Without the line above the table
    #[arg(long)]
    pub(super) no_headers: bool,
}

/// How events are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EventOutput {
    /// JSON, a line each
    Json,
}

/// A container of a pod.
#[derive(Debug, Args)]
pub(crate) struct PodContainer {
    /// The pod
    #[arg(value_name = "POD")]
    pub(super) pod: String,
    #[command(flatten)]
    pub(super) namespace: Namespace,
    /// Container of the pod; default: the first one
    #[arg(
        short,
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) container: String,
}

/// The arguments of `crustlet logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(flatten)]
    pub(super) of: PodContainer,
    /// What it will write, too, until it ends
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Of the container's run before this one
    #[arg(short, long)]
    pub(super) previous: bool,
}

/// The arguments of `crustlet exec`.
#[derive(Debug, Args)]
pub(crate) struct Exec {
    #[command(flatten)]
    pub(super) of: PodContainer,
    /// How long the command may take: 30s, 2m; without it, as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    /// Refused in words: people's fingers write it
    #[arg(short = 'i', long, hide = true)]
    pub(super) stdin: bool,
    /// The same
    #[arg(short, long, hide = true)]
    pub(super) tty: bool,
    /// The command, with its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub(super) command: Vec<String>,
}

/// The arguments of `crustlet delete`.
#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Which objects; their kinds are those of get
    #[arg(
        value_name = "KIND NAME|KIND/NAME",
        required_unless_present = "files",
        conflicts_with = "files"
    )]
    pub(super) objects: Vec<String>,
    /// Those of a manifest; - is standard input
    #[arg(short, long = "filename", value_name = "FILE|-")]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) namespace: Namespace,
    /// Forget it at once; what is left of a pod is ended then, without any grace
    #[arg(long)]
    pub(super) force: bool,
    /// What a pod's containers are given to end; without it, what the pod says
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) grace_period: Option<i64>,
    /// Whether to wait until they are gone
    #[arg(
        long,
        value_name = "true|false",
        default_value_t = true,
        action = clap::ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    pub(super) wait: bool,
    /// How long to wait: 30s, 2m; without it, as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("it has to be more than nothing".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(subcommand)]
        asked: AgentCommand,
    }

    fn parse(line: &str) -> Result<AgentCommand, String> {
        let words = ["crustlet"].into_iter().chain(line.split_whitespace());
        let line = Line::try_parse_from(words);
        line.map(|line| line.asked)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_one() {
        Line::command().debug_assert();
    }

    #[test]
    fn all_namespaces_count_before_one() {
        let namespace = |line: &str| match parse(line) {
            Ok(AgentCommand::Get(get)) => get.scope.namespace().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(namespace("get pods"), "default");
        assert_eq!(namespace("get pods -n shop"), "shop");
        assert_eq!(namespace("get pods -A -n shop"), "");
    }

    #[test]
    fn what_is_run_in_a_container_comes_after_two_dashes() {
        let Ok(AgentCommand::Exec(exec)) = parse("exec -it web -c app -- sh -c true -i") else {
            panic!();
        };
        assert!(exec.stdin && exec.tty);
        assert_eq!(exec.of.container, "app");
        assert_eq!(exec.command, ["sh", "-c", "true", "-i"]);
    }

    #[test]
    fn a_deletion_is_waited_for_unless_it_is_said_otherwise() {
        for (line, expected) in [
            ("delete pod web", true),
            ("delete pod/web --wait", true),
            ("delete --wait pod web", true),
            ("delete pod web --wait=false", false),
        ] {
            let Ok(AgentCommand::Delete(delete)) = parse(line) else {
                panic!("{line}");
            };
            assert_eq!(delete.wait, expected, "{line}");
        }
    }

    #[test]
    fn lines_that_mean_nothing_are_refused() {
        for (line, told) in [
            ("get", "KIND [NAME]|KIND/NAME"),
            ("delete", "KIND NAME|KIND/NAME"),
            ("delete -f a.yaml pod", "cannot be used with"),
            ("delete pod web --grace-period=-1", "-1 is not in 0.."),
            ("run --no-wait --timeout 3s a.yaml", "cannot be used with"),
            ("run --timeout 0s a.yaml", "more than nothing"),
            ("run --timeout soon a.yaml", "expected number"),
            ("exec web", "COMMAND"),
            ("events -o yaml", "possible values: json"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}

//! The arguments of the commands that call a running agent.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::objects::manifest::DEFAULT_NAMESPACE;

/// The commands that call a running agent.
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Show pods, claims, volumes on this node and other objects
    Get(GetArgs),
    /// Apply manifests and wait until their pods are running
    Run(RunArgs),
    /// Show events
    Events(EventsArgs),
    /// Print the logs of a container
    Logs(LogsArgs),
    /// Run a command in a container, without standard input or a terminal. The output is shown when the command has
    /// ended. crustlet exits with the command's exit code
    Exec(ExecArgs),
    /// Delete objects and wait until they are gone
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(super) struct Namespace {
    /// Namespace of the objects
    #[arg(short, long, value_name = "NAMESPACE", default_value = DEFAULT_NAMESPACE)]
    pub(super) namespace: String,
}

/// One namespace, or all of them.
#[derive(Debug, Args)]
pub(super) struct Scope {
    #[command(flatten)]
    namespace: Namespace,
    /// Objects of all namespaces
    #[arg(short = 'A', long)]
    pub(super) all_namespaces: bool,
}

impl Scope {
    /// Returns the namespace. Empty means all namespaces.
    pub(super) fn namespace(&self) -> &str {
        if self.all_namespaces {
            ""
        } else {
            &self.namespace.namespace
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Objects to show: all of a kind, or the named ones. Kinds: pods (po), persistentvolumeclaims (pvc),
    /// persistentvolumes (pv), volumes, storageclasses (sc), runtimeclasses, csidrivers, secrets, events (ev)
    #[arg(value_name = "KIND [NAME]|KIND/NAME", required = true)]
    pub(super) objects: Vec<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
    /// Output format [default: a table]
    #[arg(short, long, value_name = "FORMAT")]
    pub(super) output: Option<OutputFormat>,
    /// Don't print the header of the table
    #[arg(long)]
    pub(super) no_headers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table with more columns
    Wide,
    /// YAML
    Yaml,
    /// JSON
    Json,
    /// KIND/NAME, which other commands accept
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// YAML manifests; - for standard input
    #[arg(value_name = "FILE|-", required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Don't wait for the pods to run
    #[arg(long, conflicts_with = "timeout")]
    pub(super) no_wait: bool,
    /// How long to wait, for example 30s or 2m [default: until the pods run or have ended]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Object that the events are about [default: all objects]
    #[arg(value_name = "KIND/NAME")]
    pub(super) object: Option<String>,
    #[command(flatten)]
    pub(super) scope: Scope,
    /// Also show new events, until interrupted
    #[arg(short, long)]
    pub(super) watch: bool,
    /// Output format [default: a table]
    #[arg(short, long, value_name = "FORMAT")]
    pub(super) output: Option<EventOutputFormat>,
    /// Don't print the header of the table
    #[arg(long)]
    pub(super) no_headers: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum EventOutputFormat {
    /// JSON, one event per line
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct PodContainer {
    /// Name of the pod
    #[arg(value_name = "POD")]
    pub(super) pod: String,
    #[command(flatten)]
    pub(super) namespace: Namespace,
    /// Name of the container [default: the first container of the pod]
    #[arg(
        short,
        long,
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) container: String,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(super) target: PodContainer,
    /// Print new output until the container ends
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Print the logs of the container's previous run
    #[arg(short, long)]
    pub(super) previous: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    #[command(flatten)]
    pub(super) target: PodContainer,
    /// How long the command may run, for example 30s or 2m [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
    /// Always refused, with a message: users of kubectl exec type it out of habit
    #[arg(short = 'i', long, hide = true)]
    pub(super) stdin: bool,
    /// Refused like --stdin
    #[arg(short, long, hide = true)]
    pub(super) tty: bool,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub(super) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Objects to delete. See "crustlet get" for the kinds
    #[arg(
        value_name = "KIND NAME|KIND/NAME",
        required_unless_present = "files",
        conflicts_with = "files"
    )]
    pub(super) objects: Vec<String>,
    /// Delete the objects of this manifest; - for standard input; repeatable
    #[arg(short, long = "filename", value_name = "FILE|-")]
    pub(super) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) namespace: Namespace,
    /// Delete the object immediately, and kill the containers of a pod without a grace period
    #[arg(long)]
    pub(super) force: bool,
    /// How long the containers of a pod have to end, in seconds [default: the pod's own grace period]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..))]
    pub(super) grace_period: Option<i64>,
    /// Wait until the objects are gone
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
    /// How long to wait, for example 30s or 2m [default: until the objects are gone]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) timeout: Option<Duration>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("the duration must be greater than zero".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct TestCli {
        #[command(subcommand)]
        command: AgentCommand,
    }

    fn parse(line: &str) -> Result<AgentCommand, String> {
        let words = ["crustlet"].into_iter().chain(line.split_whitespace());
        let cli = TestCli::try_parse_from(words);
        cli.map(|cli| cli.command)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_arguments_are_consistent() {
        TestCli::command().debug_assert();
    }

    #[test]
    fn all_namespaces_override_the_namespace() {
        let namespace = |line: &str| match parse(line) {
            Ok(AgentCommand::Get(get)) => get.scope.namespace().to_owned(),
            other => panic!("{other:?}"),
        };
        assert_eq!(namespace("get pods"), "default");
        assert_eq!(namespace("get pods -n shop"), "shop");
        assert_eq!(namespace("get pods -A -n shop"), "");
    }

    #[test]
    fn the_command_to_run_follows_two_dashes() {
        let Ok(AgentCommand::Exec(exec)) = parse("exec -it web -c app -- sh -c true -i") else {
            panic!();
        };
        assert!(exec.stdin && exec.tty);
        assert_eq!(exec.target.container, "app");
        assert_eq!(exec.command, ["sh", "-c", "true", "-i"]);
    }

    #[test]
    fn delete_waits_by_default() {
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
    fn invalid_command_lines_are_refused() {
        for (line, expected) in [
            ("get", "KIND [NAME]|KIND/NAME"),
            ("delete", "KIND NAME|KIND/NAME"),
            ("delete -f a.yaml pod", "cannot be used with"),
            ("delete pod web --grace-period=-1", "-1 is not in 0.."),
            ("run --no-wait --timeout 3s a.yaml", "cannot be used with"),
            ("run --timeout 0s a.yaml", "greater than zero"),
            ("run --timeout soon a.yaml", "expected number"),
            ("exec web", "COMMAND"),
            ("events -o yaml", "possible values: json"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}

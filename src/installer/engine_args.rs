//! The common part of `install` and `uninstall`: options, and printing and applying a plan.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::builder::PossibleValuesParser;
use crust_engines::{
    ChangePlan, ENGINES, Engine, FileChange, HandlerRequest, NodeRoot, RestartOutcome, Service,
};
use crust_state::lock::Lock;

/// The default of `--handler`.
pub(super) const DEFAULT_HANDLER: &str = "crust";

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// File to edit [default: the engine's usual file, or a drop-in]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Name of the handler, as a RuntimeClass names it
    #[arg(long, value_name = "NAME", default_value = DEFAULT_HANDLER)]
    pub(super) handler: String,
    /// Show what would change, without changing anything
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Root directory of the node, if runcrust runs in a container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Have systemd restart (docker: reload) the engine, unless it has already read the changed file
    #[arg(long)]
    restart: bool,
    /// The engine's systemd unit if it has another name, such as k3s.service
    #[arg(long, value_name = "NAME")]
    pub(super) unit: Option<String>,
}

/// Returns a parser that accepts an engine's name or one of `others`.
pub(super) fn engine_names(others: &[&'static str]) -> PossibleValuesParser {
    let engines = ENGINES.iter().map(|engine| engine.info().name);
    PossibleValuesParser::new(engines.chain(others.iter().copied()))
}

impl EngineArgs {
    pub(super) fn node(&self) -> Result<NodeRoot> {
        let root = self.root.canonicalize();
        let root = root.with_context(|| format!("--root: realpath {}", self.root.display()))?;
        Ok(NodeRoot::new(&root))
    }

    /// Returns the request with the fields that both subcommands set.
    pub(super) fn request(
        &self,
        node: &NodeRoot,
        engine: &'static dyn Engine,
    ) -> Result<HandlerRequest> {
        Ok(HandlerRequest {
            engine,
            config: self.config(node)?,
            handler: self.handler.clone(),
            program: None,
            delegate: None,
            systemd_cgroup: None,
        })
    }

    /// Returns the absolute path of `--config`. A relative path is relative to the working directory, so it is refused
    /// if `--root` is another root directory.
    fn config(&self, node: &NodeRoot) -> Result<Option<PathBuf>> {
        let Some(config) = &self.config else {
            return Ok(None);
        };
        if config.is_relative() && !node.is_own_root() {
            bail!(
                "--config {}: isn't an absolute path; hint: give the file's path on the node, without the directory \
                 of --root",
                config.display()
            );
        }
        std::path::absolute(config).map(Some).context("getcwd")
    }

    /// Writes the files, and restarts the engine if `--restart` was given. Does nothing on a dry run.
    pub(super) fn apply(
        &self,
        node: &NodeRoot,
        request: &HandlerRequest,
        plan: &ChangePlan,
        lock: Lock,
    ) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        plan.apply(node)?;
        // A restart may take long, and doesn't need the lock.
        drop(lock);
        self.restart(node, request, plan)
    }

    fn restart(&self, node: &NodeRoot, request: &HandlerRequest, plan: &ChangePlan) -> Result<()> {
        let is_changed = plan.changes.iter().any(|change| !change.is_unchanged());
        let engine = request.engine;
        let Some(default) = engine.info().service else {
            let name = engine.info().title;
            let message =
                format!("{name} reads its configuration at each start: nothing to restart\n");
            return if is_changed { print(&message) } else { Ok(()) };
        };
        let unit = self.unit.as_deref().unwrap_or(default.unit);
        let service = Service { unit, ..default };
        let command = format!("systemctl {} {unit}", service.verb());
        if !self.restart {
            let message = format!("to apply the change, run: {command}\n");
            return if is_changed { print(&message) } else { Ok(()) };
        }
        let mut files: Vec<&Path> = vec![request.file()];
        files.extend(plan.changes.iter().map(FileChange::path));
        print(&match service.restart(node, &files)? {
            RestartOutcome::Done => format!("done: {command}\n"),
            RestartOutcome::UpToDate => {
                format!("{unit} has already read the configuration: nothing to restart\n")
            }
            RestartOutcome::Stopped => format!("{unit} isn't running: nothing to restart\n"),
        })
    }
}

/// Returns the text of a plan: the diffs of the files, and the notes.
pub(super) fn describe_plan(plan: &ChangePlan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        if change.is_unchanged() {
            let _ = writeln!(text, "{}: nothing to change", change.path().display());
        }
        text.push_str(&change.diff());
    }
    if plan.changes.is_empty() {
        text.push_str("nothing to remove\n");
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Writes to standard output. Fails if that isn't possible, because the operator wouldn't know what was done.
pub(super) fn print(text: &str) -> Result<()> {
    let result = std::io::stdout().write_all(text.as_bytes());
    result.context("write to standard output")
}

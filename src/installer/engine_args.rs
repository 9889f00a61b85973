//! The common part of `install` and `uninstall`: options, and a plan that is shown and carried out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::builder::PossibleValuesParser;
use crust_engines::{
    ChangePlan, ENGINES, Engine, FileChange, HandlerRequest, NodeRoot, RestartOutcome, Service,
};
use crust_state::lock::Lock;

/// The handler's name if none is given.
pub(super) const HANDLER: &str = "crust";

#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// The file to edit; without it the engine's usual one, or a drop-in
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The handler's name, as a runtime class has it
    #[arg(long, value_name = "NAME", default_value = HANDLER)]
    pub(super) handler: String,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The node's root directory, where this runs in a container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Have systemd restart (docker: reload) the engine, if it hasn't read the file as it is
    #[arg(long)]
    restart: bool,
    /// The engine's systemd unit, where it has another name: k3s.service
    #[arg(long, value_name = "NAME")]
    pub(super) unit: Option<String>,
}

/// Returns a parser that takes an engine's name, or one of `others`.
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

    /// Returns the request with what both verbs have.
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

    /// Returns the file that was named, as an absolute path. A relative one is of the directory that this process is
    /// in, which is none of another root's.
    fn config(&self, node: &NodeRoot) -> Result<Option<PathBuf>> {
        let Some(config) = &self.config else {
            return Ok(None);
        };
        if config.is_relative() && !node.is_here() {
            bail!(
                "--config {}: isn't an absolute path; hint: name the file as the node's own programs \
                 do, without --root's directory",
                config.display()
            );
        }
        std::path::absolute(config).map(Some).context("getcwd")
    }

    /// Writes the files, and has the engine read them. Does nothing on a dry run.
    pub(super) fn carry_out(
        &self,
        node: &NodeRoot,
        request: &HandlerRequest,
        plan: &ChangePlan,
        locked: Lock,
    ) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        plan.apply(node)?;
        // A restart may take long.
        drop(locked);
        self.restart(node, request, plan)
    }

    fn restart(&self, node: &NodeRoot, request: &HandlerRequest, plan: &ChangePlan) -> Result<()> {
        let is_changed = plan.changes.iter().any(|change| !change.is_nothing());
        let engine = request.engine;
        let Some(usual) = engine.info().service else {
            let name = engine.info().title;
            let next =
                format!("{name} reads its configuration at each start: nothing to restart\n");
            return if is_changed { tell(&next) } else { Ok(()) };
        };
        let unit = self.unit.as_deref().unwrap_or(usual.unit);
        let service = Service { unit, ..usual };
        let command = format!("systemctl {} {unit}", service.verb());
        if !self.restart {
            let next = format!("to have it read: {command}\n");
            return if is_changed { tell(&next) } else { Ok(()) };
        }
        let mut files: Vec<&Path> = vec![request.file()];
        files.extend(plan.changes.iter().map(FileChange::path));
        tell(&match service.restart(node, &files)? {
            RestartOutcome::Done => format!("done: {command}\n"),
            RestartOutcome::Fresh => format!("{unit} has read it: nothing to restart\n"),
            RestartOutcome::Stopped => format!("{unit} doesn't run: nothing to restart\n"),
        })
    }
}

/// Returns a plan as it is shown: the files' differences, and the notes.
pub(super) fn shown(plan: &ChangePlan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        if change.is_nothing() {
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

/// Writes to standard output. Fails if that fails: the operator would not know what was done.
pub(super) fn tell(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.context("write to standard output")
}

//! What adding and removing a handler have in common: what is named on the command line, and a plan
//! that is shown and carried out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use crust_engines::{Engine, Node, Outcome, Plan, Request, Service};
use crust_state::lock::Lock;

/// Where there is one handler as a rule, its name.
pub(super) const HANDLER: &str = "crust";

#[derive(Debug, clap::Args)]
pub(super) struct Common {
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

impl Common {
    pub(super) fn node(&self) -> Result<Node> {
        let root = self.root.canonicalize();
        let root = root.with_context(|| format!("--root: realpath {}", self.root.display()))?;
        Ok(Node::new(&root))
    }

    /// What is asked for, but for what one verb alone has.
    pub(super) fn request(&self, node: &Node, engine: Engine) -> Result<Request> {
        Ok(Request {
            engine,
            config: self.config(node)?,
            handler: self.handler.clone(),
            program: None,
            is_crun: false,
            systemd_cgroup: None,
        })
    }

    /// From the directory that this process is in, which is none of another root's.
    fn config(&self, node: &Node) -> Result<Option<PathBuf>> {
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

    /// Does what was shown, unless that was all.
    pub(super) fn carry_out(
        &self,
        node: &Node,
        request: &Request,
        plan: &Plan,
        locked: Lock,
    ) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        plan.apply(node)?;
        // A daemon may take its time.
        drop(locked);
        self.restart(node, request, plan)
    }

    fn restart(&self, node: &Node, request: &Request, plan: &Plan) -> Result<()> {
        let is_changed = plan.changes.iter().any(|change| !change.is_nothing());
        let Some(service) = self.service(request.engine) else {
            let next = "podman reads its configuration at each start: nothing to restart\n";
            return if is_changed { tell(next) } else { Ok(()) };
        };
        let command = format!("systemctl {} {}", service.verb.word(), service.unit);
        if !self.restart {
            let next = format!("to have it read: {command}\n");
            return if is_changed { tell(&next) } else { Ok(()) };
        }
        let mut files: Vec<&Path> = vec![request.file()];
        files.extend(plan.changes.iter().map(crust_engines::Change::path));
        tell(&match service.restart(node, &files)? {
            Outcome::Done => format!("done: {command}\n"),
            Outcome::Fresh => format!("{} has read it: nothing to restart\n", service.unit),
            Outcome::Stopped => format!("{} doesn't run: nothing to restart\n", service.unit),
        })
    }

    fn service(&self, engine: Engine) -> Option<Service<'_>> {
        let usual = engine.service()?;
        let unit = self.unit.as_deref().unwrap_or(usual.unit);
        let verb = usual.verb;
        Some(Service { unit, verb })
    }
}

pub(super) fn shown(plan: &Plan) -> String {
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

/// What nobody hears isn't done.
pub(super) fn tell(text: &str) -> Result<()> {
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        bail!("write to standard output: {error}");
    }
    Ok(())
}

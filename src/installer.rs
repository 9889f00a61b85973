//! `runcrust install` and `runcrust uninstall`: the handler in a container engine's configuration.
//!
//! What is done is told on standard output, the files' differences first. Exit 0: it is done, or there
//! is nothing to do; 1: it isn't, and one sentence on standard error says why; 2: a mistake on the
//! command line.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use crust_handler::{
    Copy, Engine, Node, Outcome, Plan, Request, Service, check_complete, check_unused, plan_copies,
};
use crust_state::lock::Lock;
use crust_state::sentence;
use rustix::fs::{Stat, stat};
use rustix::param::linux_execfn;

use crate::delegate::built_in;

/// An OCI runtime that mounts deferred CSI volumes inside the pod's sandbox (KEP-2857)
#[derive(Debug, Parser)]
#[command(name = "runcrust", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Add runcrust to a container engine's configuration, as a handler
    Install(Install),
    /// Remove what install added, unless volumes are in use
    Uninstall(Common),
}

#[derive(Debug, clap::Args)]
struct Install {
    #[command(flatten)]
    common: Common,
    /// containerd's `SystemdCgroup` for the handler; without it, as `runc` has it
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    systemd_cgroup: Option<bool>,
    /// First copy runcrust and crust-mount-hook into this directory of the node; the handler runs
    /// that copy
    #[arg(long, value_name = "DIR", conflicts_with = "program")]
    copy_to: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Whose configuration it is
    engine: EngineName,
    /// The file to edit; without it the engine's usual one, or a drop-in
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The handler's name, as a runtime class has it
    #[arg(long, value_name = "NAME", default_value = "crust")]
    handler: String,
    /// What the handler runs: an absolute path, whose last part selects runcrust's own
    /// configuration; without it, what this program was called by
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// The node's root directory, where this runs in a container
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Have systemd restart (docker: reload) the engine, if it hasn't read the file as it is
    #[arg(long)]
    restart: bool,
    /// The engine's systemd unit, where it has another name: k3s.service
    #[arg(long, value_name = "NAME")]
    unit: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EngineName {
    Containerd,
    Crio,
    Podman,
    Docker,
}

impl From<EngineName> for Engine {
    fn from(name: EngineName) -> Self {
        match name {
            EngineName::Containerd => Self::Containerd,
            EngineName::Crio => Self::Crio,
            EngineName::Podman => Self::Podman,
            EngineName::Docker => Self::Docker,
        }
    }
}

/// The verbs.
pub(crate) fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the verb that is at `at` in argv.
pub(crate) fn run(argv: &[OsString], at: usize) -> ExitCode {
    const USAGE: u8 = 2;
    if at != 1 {
        let flags = "flags of install and uninstall come after the word";
        let _ = writeln!(std::io::stderr(), "runcrust: {flags}");
        return ExitCode::from(USAGE);
    }
    let name = OsString::from("runcrust");
    let arguments = match Arguments::try_parse_from(std::iter::once(&name).chain(&argv[at..])) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            let code = if error.use_stderr() { USAGE } else { 0 };
            return ExitCode::from(code);
        }
    };
    let done = match &arguments.verb {
        Verb::Install(install) => self::install(install),
        Verb::Uninstall(common) => uninstall(common),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "runcrust: {}", sentence(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn install(arguments: &Install) -> Result<()> {
    let common = &arguments.common;
    let node = common.node()?;
    let locked = node.lock()?;
    let copies = match &arguments.copy_to {
        Some(directory) => plan_copies(&node, directory)?,
        None => Vec::new(),
    };
    let program = match copies.last() {
        Some(runcrust) => runcrust.path.clone(),
        None => common.program()?,
    };
    let request = Request {
        program: Some(program.clone()),
        systemd_cgroup: arguments.systemd_cgroup,
        ..common.request(&node)?
    };
    let plan = crust_handler::install(&node, &request)?;
    if copies.is_empty() {
        node.check_program(&program)?;
    }
    check_complete(&node, &program, &built_in(), &copies)?;
    tell(&shown(&plan))?;
    for copy in &copies {
        carry_over(&node, copy, common.dry_run)?;
    }
    common.carry_out(&node, &plan, locked)?;
    tell(&format!("RuntimeClass handler: {}\n", common.handler))
}

fn carry_over(node: &Node, copy: &Copy, is_dry_run: bool) -> Result<()> {
    if !is_dry_run {
        copy.apply(node)?;
    }
    let what = match (copy.is_same, is_dry_run) {
        (true, _) => "is there",
        (false, true) => "would be copied",
        (false, false) => "copied",
    };
    tell(&format!("{}: {what}\n", copy.path.display()))
}

fn uninstall(common: &Common) -> Result<()> {
    let node = common.node()?;
    let locked = node.lock()?;
    let plan = crust_handler::uninstall(&node, &common.request(&node)?)?;
    let in_use = match &plan.program {
        Some(program) => check_unused(&node, program),
        None => Ok(()),
    };
    tell(&shown(&plan))?;
    let what = || format!("handler {} stays", common.handler);
    in_use.with_context(what)?;
    common.carry_out(&node, &plan, locked)
}

impl Common {
    fn node(&self) -> Result<Node> {
        let root = self.root.canonicalize();
        let root = root.with_context(|| format!("--root: realpath {}", self.root.display()))?;
        Ok(Node::new(&root))
    }

    fn program(&self) -> Result<PathBuf> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => called_by(),
        }
    }

    fn request(&self, node: &Node) -> Result<Request> {
        Ok(Request {
            engine: self.engine.into(),
            config: self.config(node)?,
            handler: self.handler.clone(),
            program: self.program.clone(),
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
    fn carry_out(&self, node: &Node, plan: &Plan, locked: Lock) -> Result<()> {
        if self.dry_run {
            return Ok(());
        }
        plan.apply(node)?;
        // A daemon may take its time.
        drop(locked);
        self.restart(node, plan)
    }

    fn restart(&self, node: &Node, plan: &Plan) -> Result<()> {
        let is_changed = plan.changes.iter().any(|change| !change.is_nothing());
        let Some(service) = self.service() else {
            let next = "podman reads its configuration at each start: nothing to restart\n";
            return if is_changed { tell(next) } else { Ok(()) };
        };
        let command = format!("systemctl {} {}", service.verb.word(), service.unit);
        if !self.restart {
            let next = format!("to have it read: {command}\n");
            return if is_changed { tell(&next) } else { Ok(()) };
        }
        let request = self.request(node)?;
        let mut files: Vec<&Path> = vec![request.file()];
        files.extend(plan.changes.iter().map(crust_handler::Change::path));
        tell(&match service.restart(node, &files)? {
            Outcome::Done => format!("done: {command}\n"),
            Outcome::Fresh => format!("{} has read it: nothing to restart\n", service.unit),
            Outcome::Stopped => format!("{} doesn't run: nothing to restart\n", service.unit),
        })
    }

    fn service(&self) -> Option<Service<'_>> {
        let usual = Engine::from(self.engine).service()?;
        let unit = self.unit.as_deref().unwrap_or(usual.unit);
        let verb = usual.verb;
        Some(Service { unit, verb })
    }
}

/// The path that the operator called: as a shell found it, its links not followed, for the name selects
/// the configuration. Where that was, the kernel knows, whatever `PATH` is by now.
fn called_by() -> Result<PathBuf> {
    let argv0 = std::env::args_os().next();
    let name = argv0.as_deref().map_or(Path::new(""), Path::new);
    if name.components().count() > 1 {
        return std::path::absolute(name).context("getcwd");
    }
    let executed = Path::new(OsStr::from_bytes(linux_execfn().to_bytes()));
    let executed = std::path::absolute(executed).context("getcwd")?;
    let same = stat("/proc/self/exe").context("stat(\"/proc/self/exe\")")?;
    let is_own = |it: Stat| (it.st_dev, it.st_ino) == (same.st_dev, same.st_ino);
    let is_called_so = executed.file_name() == Some(name.as_os_str());
    if is_called_so && stat(&executed).is_ok_and(is_own) {
        return Ok(executed);
    }
    crate::start::own_path(argv0.as_ref())
}

fn shown(plan: &Plan) -> String {
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
fn tell(text: &str) -> Result<()> {
    if let Err(error) = std::io::stdout().write_all(text.as_bytes()) {
        bail!("write to standard output: {error}");
    }
    Ok(())
}

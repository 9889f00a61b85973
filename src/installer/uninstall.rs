//! `runcrust uninstall`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use crust_engines::{Engine, Node, Request, check_unused, check_unused_by_any, handlers};

use super::common::{Common, HANDLER, shown, tell};

#[derive(Debug, clap::Args)]
pub(super) struct Uninstall {
    /// Whose configuration it is; `all`: every handler of runcrust's in every engine's usual files
    engine: EngineName,
    #[command(flatten)]
    common: Common,
    /// A program that is runcrust, though its name doesn't begin so
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Don't end when it is done: for a container of a `DaemonSet`, which would be started again
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
    /// As in the line that installed it; the copies stay
    #[arg(long, value_name = "DIR", hide = true)]
    copy_to: Option<PathBuf>,
    /// As in the line that installed it
    #[arg(long, value_name = "BOOL", hide = true)]
    systemd_cgroup: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EngineName {
    Containerd,
    Crio,
    Podman,
    Docker,
    All,
}

impl EngineName {
    /// `None`: all of them.
    const fn engine(self) -> Option<Engine> {
        match self {
            Self::Containerd => Some(Engine::Containerd),
            Self::Crio => Some(Engine::Crio),
            Self::Podman => Some(Engine::Podman),
            Self::Docker => Some(Engine::Docker),
            Self::All => None,
        }
    }
}

impl Uninstall {
    /// What clap doesn't see.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        let common = &self.common;
        let names_one = common.config.is_some()
            || common.unit.is_some()
            || self.program.is_some()
            || common.handler != HANDLER;
        (self.engine == EngineName::All && names_one).then_some(
            "--config, --handler, --program and --unit are of one engine, not of all of them",
        )
    }

    pub(super) fn run(&self) -> Result<()> {
        let node = self.common.node()?;
        match self.engine.engine() {
            Some(engine) => self.one(&node, engine)?,
            None => self.all(&node)?,
        }
        if !self.stay {
            return Ok(());
        }
        // Now and then it wakes by itself.
        loop {
            std::thread::park();
        }
    }

    fn one(&self, node: &Node, engine: Engine) -> Result<()> {
        let request = Request {
            program: self.program.clone(),
            ..self.common.request(node, engine)?
        };
        self.remove(node, &request)
    }

    /// Nobody's volumes may be in use, whatever made them: who asks for this is about to remove the
    /// programs.
    fn all(&self, node: &Node) -> Result<()> {
        check_unused_by_any(node).context("runcrust stays")?;
        let mut is_any = false;
        let engines = EngineName::value_variants().iter();
        for engine in engines.filter_map(|name| name.engine()) {
            for handler in handlers(node, engine, None)? {
                is_any = true;
                let request = Request {
                    handler,
                    ..self.common.request(node, engine)?
                };
                self.remove(node, &request)?;
            }
        }
        if is_any {
            return Ok(());
        }
        tell("nothing to remove\n")
    }

    fn remove(&self, node: &Node, request: &Request) -> Result<()> {
        let locked = node.lock()?;
        let plan = crust_engines::uninstall(node, request)?;
        let in_use = match &plan.program {
            Some(program) => check_unused(node, program),
            None => Ok(()),
        };
        tell(&shown(&plan))?;
        in_use.with_context(|| format!("handler {} stays", request.handler))?;
        self.common.carry_out(node, request, &plan, locked)
    }
}

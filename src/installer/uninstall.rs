//! `runcrust uninstall`.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::builder::TypedValueParser as _;
use crust_engines::{
    ENGINES, Engine, HandlerRequest, NodeRoot, check_unused, check_unused_by_any, find_engine,
    runcrust_handlers,
};

use super::engine_args::{EngineArgs, HANDLER, engine_names, shown, tell};

const ALL: &str = "all";

#[derive(Debug, clap::Args)]
pub(super) struct Uninstall {
    /// Whose configuration it is; `all`: every handler of runcrust's in every engine's usual files
    #[arg(value_parser = engine_names(&[ALL]).map(|name| find_engine(&name).map_or(Engines::All, Engines::One)))]
    engine: Engines,
    #[command(flatten)]
    common: EngineArgs,
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

/// One engine, or all of them.
#[derive(Debug, Clone, Copy)]
enum Engines {
    One(&'static dyn Engine),
    All,
}

impl Uninstall {
    /// Returns a mistake that clap doesn't see.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        let common = &self.common;
        let names_one = common.config.is_some()
            || common.unit.is_some()
            || self.program.is_some()
            || common.handler != HANDLER;
        (matches!(self.engine, Engines::All) && names_one).then_some(
            "--config, --handler, --program and --unit are of one engine, not of all of them",
        )
    }

    pub(super) fn run(&self) -> Result<()> {
        let node = self.common.node()?;
        match self.engine {
            Engines::One(engine) => self.one(&node, engine)?,
            Engines::All => self.all(&node)?,
        }
        if !self.stay {
            return Ok(());
        }
        // A thread that is parked may wake up without a reason.
        loop {
            std::thread::park();
        }
    }

    fn one(&self, node: &NodeRoot, engine: &'static dyn Engine) -> Result<()> {
        let request = HandlerRequest {
            program: self.program.clone(),
            ..self.common.request(node, engine)?
        };
        self.remove(node, &request)
    }

    /// Removes every handler of runcrust's. No volume may be in use, whatever handler mounted it: the operator is about
    /// to remove the programs.
    fn all(&self, node: &NodeRoot) -> Result<()> {
        check_unused_by_any(node).context("runcrust stays")?;
        let mut is_any = false;
        for engine in ENGINES {
            for handler in runcrust_handlers(node, *engine)? {
                is_any = true;
                let request = HandlerRequest {
                    handler,
                    ..self.common.request(node, *engine)?
                };
                self.remove(node, &request)?;
            }
        }
        if is_any {
            return Ok(());
        }
        tell("nothing to remove\n")
    }

    fn remove(&self, node: &NodeRoot, request: &HandlerRequest) -> Result<()> {
        let locked = node.lock()?;
        let plan = crust_engines::uninstall(node, request)?;
        let mut programs = plan.programs.iter();
        let in_use = programs.try_for_each(|program| check_unused(node, program));
        tell(&shown(&plan))?;
        in_use.with_context(|| format!("handler {} stays", request.handler))?;
        self.common.carry_out(node, request, &plan, locked)
    }
}

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::builder::TypedValueParser as _;
use crust_engines::{
    ENGINES, Engine, HandlerRequest, NodeRoot, check_unused, check_unused_by_any, find_engine,
    runcrust_handlers,
};

use super::engine_args::{DEFAULT_HANDLER, EngineArgs, describe_plan, engine_names, print};

const ALL: &str = "all";

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct Uninstall {
    /// Container engine to remove the handler from; "all" removes every handler that runs runcrust
    /// from the usual files of all engines
    #[arg(value_parser = engine_names(&[ALL]).map(|name| find_engine(&name).map_or(Engines::All, Engines::One)))]
    engine: Engines,
    #[command(flatten)]
    common: EngineArgs,
    /// Treat PATH as runcrust even though its name doesn't start with "runcrust"
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Keep running when done, so that the container of a DaemonSet isn't restarted
    #[arg(long, conflicts_with = "dry_run")]
    stay: bool,
    /// Accepted as for install, and ignored; the copies stay
    #[arg(long, value_name = "DIR", hide = true)]
    copy_to: Option<PathBuf>,
    /// Accepted as for install, and ignored
    #[arg(long, value_name = "BOOL", hide = true)]
    systemd_cgroup: Option<bool>,
}

#[derive(Debug, Clone, Copy)]
enum Engines {
    One(&'static dyn Engine),
    All,
}

impl Uninstall {
    /// Returns the error for a conflict of arguments that clap doesn't detect.
    pub(super) fn conflict(&self) -> Option<&'static str> {
        let common = &self.common;
        let names_one = common.config.is_some()
            || common.unit.is_some()
            || self.program.is_some()
            || common.handler != DEFAULT_HANDLER;
        (matches!(self.engine, Engines::All) && names_one).then_some(
            "--config, --handler, --program and --unit need the name of one engine instead of `all`",
        )
    }

    pub(super) fn run(&self) -> Result<()> {
        let node = self.common.node()?;
        match self.engine {
            Engines::One(engine) => self.uninstall_one(&node, engine)?,
            Engines::All => self.uninstall_all(&node)?,
        }
        if !self.stay {
            return Ok(());
        }
        // park may return spuriously.
        loop {
            std::thread::park();
        }
    }

    fn uninstall_one(&self, node: &NodeRoot, engine: &'static dyn Engine) -> Result<()> {
        let request = HandlerRequest {
            program: self.program.clone(),
            ..self.common.request(node, engine)?
        };
        self.remove(node, &request)
    }

    /// Removes every handler that runs runcrust. Fails if a volume is in use, whatever handler mounted it: the operator
    /// is about to remove the programs.
    fn uninstall_all(&self, node: &NodeRoot) -> Result<()> {
        check_unused_by_any(node).context("runcrust is not uninstalled")?;
        let mut found_any = false;
        for engine in ENGINES {
            for handler in runcrust_handlers(node, *engine)? {
                found_any = true;
                let request = HandlerRequest {
                    handler,
                    ..self.common.request(node, *engine)?
                };
                self.remove(node, &request)?;
            }
        }
        if found_any {
            return Ok(());
        }
        print("nothing to remove\n")
    }

    fn remove(&self, node: &NodeRoot, request: &HandlerRequest) -> Result<()> {
        let lock = node.lock()?;
        let plan = crust_engines::uninstall(node, request)?;
        let mut programs = plan.programs.iter();
        let in_use = programs.try_for_each(|program| check_unused(node, program));
        print(&describe_plan(&plan))?;
        in_use.with_context(|| format!("handler {} is not removed", request.handler))?;
        self.common.apply(node, request, &plan, lock)
    }
}

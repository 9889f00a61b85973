//! `create`, `run` and `restore`: the bundle is read, planned, mounted and rewritten, in this
//! order, before the delegate gets it.

mod bundle;
mod container;
mod decide;
mod lend;

use std::ffi::OsString;

use anyhow::{Context as _, Result, anyhow, bail};
use crust_mount::volume::Context;
use crust_state::lock::Lock;
use crust_state::{Config, CrustDirectory, Deadline, StateDirectory};

use crate::invocation::{Globals, Start};
use crate::oci::Document;
use crate::plan::{Plan, SandboxPlan};

use bundle::Bundle;
pub(crate) use bundle::original;
pub(crate) use decide::running_sandbox;

/// A call that makes a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) start: &'a Start,
    pub(crate) globals: &'a Globals,
    pub(crate) config: &'a Config,
    pub(crate) argv0: Option<&'a OsString>,
    pub(crate) deadline: Deadline,
}

/// Makes a bundle ready for the delegate. Where nothing matches, the config is read once and
/// nothing is written. Otherwise the bundle is locked; the lock is let go by the exec.
pub(crate) fn prepare(job: Job<'_>) -> Result<Option<Lock>> {
    let Some(file) = job.read()? else {
        // The delegate has its own words for that.
        return Ok(None);
    };
    let document = Document::parse(file.bytes())?;
    if !job.is_rewritten(&document)? && job.plan(&document)? == Plan::PassOn {
        return Ok(None);
    }
    let state = StateDirectory::create(&job.config.state_dir)?;
    let made = job.made()?;
    let lock = Lock::bundle(made.directory(), job.deadline)?;
    // Another create of the same bundle may just have let go of it.
    let Some(file) = job.read()? else {
        return Ok(None);
    };
    let document = Document::parse(file.bytes())?;
    if !job.is_rewritten(&document)? {
        job.carry_out(&document, Bundle::new(&state, &file, made))?;
        return Ok(Some(lock));
    }
    let (bundle, text) = Bundle::undone(&state, &file, made, &document, job.config)?;
    job.carry_out(&Document::parse(&text)?, bundle)?;
    Ok(Some(lock))
}

impl Job<'_> {
    fn carry_out(&self, document: &Document<'_>, bundle: Bundle<'_>) -> Result<()> {
        match self.plan(document)? {
            Plan::PassOn => bundle.leave(document),
            Plan::Sandbox(plan) => self.sandbox(document, bundle, &plan),
            Plan::Container(plan) => self.container(document, bundle, &plan),
        }
    }

    fn sandbox(
        &self,
        document: &Document<'_>,
        bundle: Bundle<'_>,
        plan: &SandboxPlan,
    ) -> Result<()> {
        if let Some(other) = bundle.state().sandbox(&self.id()?)?
            && other.process.is_alive()
        {
            let (names, id, pid) = (plan.names(), other.id, other.process.pid);
            bail!(
                "{names}: sandbox {id} exists already, its process is {pid}; hint: delete it \
                 first, or use another id"
            );
        }
        let rewrite = self.sandbox_rewrite(document, plan)?;
        let committed = bundle.commit(document, rewrite);
        committed.with_context(|| plan.names())
    }

    pub(crate) fn context<'c>(
        &'c self,
        crust: &'c CrustDirectory,
        state: &'c StateDirectory,
    ) -> Context<'c> {
        Context {
            config: self.config,
            crust,
            state,
            deadline: self.deadline,
        }
    }

    fn id(&self) -> Result<String> {
        let id = &self.start.id;
        let text = id.to_str().map(str::to_owned);
        text.ok_or_else(|| anyhow!("container id {} isn't UTF-8", id.display()))
    }
}

//! `create`, `run` and `restore`: the bundle is read, planned, mounted and rewritten, in this
//! order, before the delegate gets it.

mod bundle;
mod container;
mod decide;
mod lend;

use std::borrow::Cow;
use std::ffi::OsString;

use anyhow::{Context as _, Result, anyhow, bail};
use crust_mount::privileges::{self, Step};
use crust_mount::volume::Context;
use crust_state::foreign::ForeignFile;
use crust_state::lock::Lock;
use crust_state::{Config, CrustDirectory, Deadline, StateDirectory};

use crate::invocation::{Flavour, Globals, Start};
use crate::oci::Document;
use crate::plan::{Plan, SandboxPlan};

use bundle::Bundle;
pub(crate) use bundle::original;
pub(crate) use decide::{one_reading, running_sandbox};

/// A call that makes a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) start: &'a Start,
    pub(crate) globals: &'a Globals,
    pub(crate) config: &'a Config,
    /// The delegate's.
    pub(crate) flavour: Flavour,
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
    let text = as_text(file.bytes());
    let Some(who) = job.concern(&Document::at_first(&text)?)? else {
        return Ok(None);
    };
    privileges::lowered(Step::Create, || job.make_ready(&file, &who))?
}

/// As Go reads it. Almost all of them are UTF-8, which is quicker to check as a whole.
fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

impl Job<'_> {
    /// Of a config that concerns `who`.
    fn make_ready(&self, file: &ForeignFile, who: &str) -> Result<Option<Lock>> {
        let text = one_reading(file.bytes(), who)?;
        let document = Document::parse(&text)?;
        if !self.is_rewritten(&document) && self.plan(&document, file.bytes(), who)? == Plan::PassOn
        {
            return Ok(None);
        }
        let state = StateDirectory::create(&self.config.state_dir)?;
        let made = self.made()?;
        let lock = Lock::bundle(made.directory(), self.deadline)?;
        // Another create of the same bundle may just have let go of it.
        let Some(file) = self.read()? else {
            return Ok(None);
        };
        let text = one_reading(file.bytes(), who)?;
        let document = Document::parse(&text)?;
        let bundle = if self.is_rewritten(&document) {
            Bundle::undone(&state, &file, made, &document, self.config)?
        } else {
            Bundle::new(&state, &file, made)
        };
        let text = one_reading(bundle.text(), who)?;
        self.carry_out(&Document::parse(&text)?, &bundle, who)?;
        Ok(Some(lock))
    }

    fn carry_out(&self, document: &Document<'_>, bundle: &Bundle<'_>, who: &str) -> Result<()> {
        match self.plan(document, bundle.text(), who)? {
            Plan::PassOn => bundle.leave(),
            Plan::Sandbox(plan) => self.sandbox(document, bundle, &plan),
            Plan::Container(plan) => self.container(document, bundle, &plan),
        }
    }

    fn sandbox(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
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

//! `create`, `run` and `restore`: reads the bundle, plans, mounts and rewrites, in this order, before the delegate
//! gets the bundle.

mod attach;
mod bundle;
mod container;
mod decide;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use crust_blockfs::Deadline;
use crust_blockfs::device::Neighbours;
use crust_state::foreign::ForeignFile;
use crust_state::lock::Lock;
use crust_state::{Config, CrustDirectory, DelegateKind, StateDirectory};
use crust_volume::Context;
use crust_volume::privileges::{self, Operation};

use crate::invocation::{CreateCommand, GlobalFlags};
use crate::node::CachedNode;
use crate::oci::{Document, DocumentError};
use crate::plan::{Plan, SandboxPlan};

use bundle::Bundle;
pub(crate) use bundle::original;
pub(crate) use decide::{FirstLook, in_one_reading, running_sandbox};

/// A call that makes a container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) start: &'a CreateCommand,
    pub(crate) globals: &'a GlobalFlags,
    pub(crate) config: &'a Config,
    pub(crate) crust: &'a CrustDirectory,
    /// The delegate's kind.
    pub(crate) kind: DelegateKind,
    pub(crate) argv0: Option<&'a OsString>,
    pub(crate) deadline: Deadline,
    pub(crate) neighbours: &'a Neighbours,
}

/// Makes a bundle ready for the delegate. Where nothing matches, the config is read once and
/// nothing is written. Otherwise the bundle is locked until the exec.
pub(crate) fn prepare(job: Job<'_>) -> Result<Option<Lock>> {
    let Some(file) = job.read()? else {
        // The delegate has its own words for that.
        return Ok(None);
    };
    let text = as_text(file.bytes());
    let given = Document::parse_lossy(&text)?;
    let Some(first) = job.first_look(&given)? else {
        return Ok(None);
    };
    let is_legible = std::str::from_utf8(file.bytes()).map_err(DocumentError::Encoding);
    is_legible.with_context(|| first.who.clone())?;
    privileges::with_lowered(Operation::Create, || job.make_ready(&file, &given, first))?
}

/// Returns a config's text as Go reads it. Almost all are UTF-8, which is quicker to check as a whole.
fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

impl Job<'_> {
    /// Locks the bundle of a config that concerns a volume, and rewrites it. Returns no lock if the delegate gets the
    /// bundle as it is after all.
    fn make_ready(
        &self,
        file: &ForeignFile,
        given: &Document<'_>,
        first: FirstLook<'_, '_>,
    ) -> Result<Option<Lock>> {
        let config = self.real_config()?;
        let lock = Lock::bundle(config.parent().unwrap_or(&config), self.deadline)?;
        // What was read before another create of the bundle was waited for may be out of date.
        let is_rewritten = if !lock.had_to_wait() && file.is_unchanged()? {
            self.rewrite(file, given, config, first)?
        } else {
            let Some(file) = self.read()? else {
                return Ok(None);
            };
            let given = Document::parse(file.bytes()).with_context(|| first.who)?;
            let Some(first) = self.first_look(&given)? else {
                return Ok(None);
            };
            self.rewrite(&file, &given, config, first)?
        };
        Ok(is_rewritten.then_some(lock))
    }

    /// Plans and rewrites a bundle whose lock is held. Returns false if the delegate gets it as it is.
    fn rewrite(
        &self,
        file: &ForeignFile,
        given: &Document<'_>,
        config: PathBuf,
        mut first: FirstLook<'_, '_>,
    ) -> Result<bool> {
        let who = first.who.clone();
        in_one_reading(given, &who, |document| {
            if !self.is_rewritten(document) {
                let plan = self.plan(document, given, &mut first)?;
                if plan == Plan::PassOn {
                    return Ok(false);
                }
                let state = StateDirectory::create(&self.config.state_dir)?;
                let bundle = Bundle::new(&state, file, self.made(config)?);
                self.carry_out(document, &bundle, plan, &first.node)?;
                return Ok(true);
            }
            let state = StateDirectory::create(&self.config.state_dir)?;
            let made = self.made(config)?;
            let bundle = Bundle::undone(&state, file, made, document, self.config)?;
            let given = Document::parse(bundle.text()).with_context(|| who.clone())?;
            in_one_reading(&given, &who, |document| {
                let plan = self.plan(document, &given, &mut first)?;
                self.carry_out(document, &bundle, plan, &first.node)
            })?;
            Ok(true)
        })
    }

    fn carry_out(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: Plan,
        node: &CachedNode<'_>,
    ) -> Result<()> {
        match plan {
            Plan::PassOn => bundle.leave(),
            Plan::Sandbox(plan) => self.sandbox(document, bundle, &plan, node),
            Plan::Container(plan) => self.container(document, bundle, &plan, node),
        }
    }

    fn sandbox(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: &SandboxPlan,
        node: &CachedNode<'_>,
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
        let rewrite = self.sandbox_rewrite(document, plan, node)?;
        let committed = bundle.commit(document, rewrite);
        committed.with_context(|| plan.names())
    }

    pub(crate) fn context<'c>(&'c self, state: &'c StateDirectory) -> Context<'c> {
        Context {
            config: self.config,
            crust: self.crust,
            state,
            deadline: self.deadline,
            neighbours: self.neighbours,
        }
    }

    fn id(&self) -> Result<String> {
        let id = &self.start.id;
        let text = id.to_str().map(str::to_owned);
        text.ok_or_else(|| anyhow!("container id {} isn't UTF-8", id.display()))
    }
}

//! `create`, `run` and `restore`: reads the bundle, plans the create, mounts the volumes and rewrites the config,
//! before the delegate gets the bundle.

mod attach;
mod bundle;
mod container;
mod decide;

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::foreign::ForeignFile;
use crust_state::lock::Lock;
use crust_state::{Config, CrustDirectory, DelegateKind, StateDirectory};
use crust_volume::Context;
use crust_volume::privileges::{self, Operation};

use crate::invocation::{CreateCommand, GlobalFlags};
use crate::node::CachedNode;
use crate::oci::{Document, DocumentError};
use crate::plan::{Plan, SandboxPlan};
use crate::report::ErrorReporter;

use bundle::Bundle;
pub(crate) use bundle::original_config;
pub(crate) use decide::{ConfigScan, running_sandbox, with_unambiguous_config};

/// A call that creates a container: `create`, `run` or `restore`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CreateCall<'a> {
    pub(crate) command: &'a CreateCommand,
    pub(crate) globals: &'a GlobalFlags,
    pub(crate) config: &'a Config,
    pub(crate) crust: &'a CrustDirectory,
    pub(crate) delegate_kind: DelegateKind,
    pub(crate) argv0: Option<&'a OsString>,
    pub(crate) deadline: Deadline,
    pub(crate) loop_devices: &'a LoopDeviceCache,
    /// Reports an error that ends the process while a call waits for a file server.
    pub(crate) reporter: &'a ErrorReporter,
}

/// Prepares a bundle for the delegate. If no volume is concerned, the config is read once and nothing is written.
/// Otherwise the config is rewritten, and the returned lock of the bundle has to be held until the exec.
pub(crate) fn prepare(call: CreateCall<'_>) -> Result<Option<Lock>> {
    let Some(file) = call.read_config()? else {
        // The delegate reports the missing config.
        return Ok(None);
    };
    let text = as_text(file.bytes());
    let given = Document::parse_lossy(&text)?;
    let Some(scan) = call.scan(&given)? else {
        return Ok(None);
    };
    let decoded = std::str::from_utf8(file.bytes()).map_err(DocumentError::Encoding);
    decoded.with_context(|| scan.subject.clone())?;
    privileges::with_lowered(Operation::Create, || {
        call.lock_and_rewrite(&file, &given, scan)
    })?
}

/// Returns a config's text as Go reads it. Almost every config is UTF-8, which is faster to check as a whole.
fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

impl CreateCall<'_> {
    /// Locks the bundle of a config that concerns a volume, and rewrites the config. Returns `None` if the delegate
    /// gets the bundle unchanged after all.
    fn lock_and_rewrite(
        &self,
        file: &ForeignFile,
        given: &Document<'_>,
        scan: ConfigScan<'_, '_>,
    ) -> Result<Option<Lock>> {
        let config = self.real_config()?;
        let lock = Lock::acquire_bundle(config.parent().unwrap_or(&config), self.deadline)?;
        // If this create waited for another create of the bundle, the config may have changed since it was read.
        let is_rewritten = if !lock.had_to_wait() && file.is_unchanged()? {
            self.rewrite(file, given, config, scan)?
        } else {
            let Some(file) = self.read_config()? else {
                return Ok(None);
            };
            let given = Document::parse(file.bytes()).with_context(|| scan.subject)?;
            let Some(scan) = self.scan(&given)? else {
                return Ok(None);
            };
            self.rewrite(&file, &given, config, scan)?
        };
        Ok(is_rewritten.then_some(lock))
    }

    /// Plans the create of a bundle whose lock is held, and rewrites its config. Returns false if the delegate gets the
    /// bundle unchanged.
    fn rewrite(
        &self,
        file: &ForeignFile,
        given: &Document<'_>,
        config: PathBuf,
        mut scan: ConfigScan<'_, '_>,
    ) -> Result<bool> {
        let subject = scan.subject.clone();
        with_unambiguous_config(given, &subject, |document| {
            if !self.is_rewritten(document) {
                let plan = self.plan(document, given, &mut scan)?;
                if plan == Plan::PassThrough {
                    return Ok(false);
                }
                let state = StateDirectory::create(&self.config.state_dir)?;
                let bundle = Bundle::new(&state, file, self.bundle_to_record(config)?);
                self.apply(document, &bundle, plan, &scan.node)?;
                return Ok(true);
            }
            let state = StateDirectory::create(&self.config.state_dir)?;
            let recorded = self.bundle_to_record(config)?;
            let bundle = Bundle::from_rewritten(&state, file, recorded, document, self.config)?;
            let given = Document::parse(bundle.text()).with_context(|| subject.clone())?;
            with_unambiguous_config(&given, &subject, |document| {
                let plan = self.plan(document, &given, &mut scan)?;
                self.apply(document, &bundle, plan, &scan.node)
            })?;
            Ok(true)
        })
    }

    fn apply(
        &self,
        document: &Document<'_>,
        bundle: &Bundle<'_>,
        plan: Plan,
        node: &CachedNode<'_>,
    ) -> Result<()> {
        match plan {
            Plan::PassThrough => bundle.restore(),
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
            let (subject, id, pid) = (plan.subject(), other.id, other.process.pid);
            bail!(
                "{subject}: sandbox {id} already exists with process {pid}; hint: delete that sandbox first, or use \
                 another id"
            );
        }
        let rewrite = self.sandbox_rewrite(document, plan, node)?;
        let committed = bundle.commit(document, rewrite);
        committed.with_context(|| plan.subject())
    }

    pub(crate) fn context<'c>(&'c self, state: &'c StateDirectory) -> Context<'c> {
        Context {
            config: self.config,
            crust: self.crust,
            state,
            deadline: self.deadline,
            loop_devices: self.loop_devices,
        }
    }

    fn id(&self) -> Result<String> {
        let id = &self.command.id;
        let text = id.to_str().map(str::to_owned);
        text.ok_or_else(|| anyhow!("container id {} isn't UTF-8", id.display()))
    }
}

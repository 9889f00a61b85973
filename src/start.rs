//! `create`, `run` and `restore`: the bundle is read, planned, mounted and rewritten, in this
//! order, before the delegate gets it.

mod member;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use crust_mount::volume::{self, Context};
use crust_state::bundle::BundleRecord;
use crust_state::{Config, CrustDirectory, Deadline, Digest, StateDirectory};

use crate::invocation::{Globals, Start, Verb};
use crate::node::ThisNode;
use crate::oci::{ConfigFile, Document, Edit};
use crate::plan::{Facts, Plan, SandboxPlan, plan};
use crate::rewrite::{self, Hooks};
use crate::role::Role;

/// kubelet gives a container's create two minutes, and a sandbox's mounts are its hook's.
const LIMIT: Duration = Duration::from_secs(110);

/// Makes a bundle ready for the delegate. Where nothing matches, nothing is written.
pub(crate) fn prepare(
    start: &Start,
    globals: &Globals,
    config: &Config,
    argv0: Option<&OsString>,
) -> Result<()> {
    let Some(file) = ConfigFile::read(&start.bundle, start.config.as_deref())? else {
        // The delegate has its own words for that.
        return Ok(());
    };
    let document = Document::parse(file.bytes())?;
    let job = Job {
        start,
        globals,
        config,
        argv0,
        file: &file,
    };
    let role = Role::of(|key| document.annotation(key))?;
    let is_sandbox = matches!(role, Role::Sandbox { .. });
    if !rewrite::is_rewritten(&document.mounts()?, is_sandbox, config) {
        return job.carry_out(&document, role, false);
    }
    let undone = job.undo(&document)?;
    job.carry_out(&Document::parse(&undone)?, role, true)
}

/// One create.
struct Job<'a> {
    start: &'a Start,
    globals: &'a Globals,
    config: &'a Config,
    argv0: Option<&'a OsString>,
    file: &'a ConfigFile,
}

impl Job<'_> {
    /// Plans and does. `changed`: the document isn't what the file holds any more.
    fn carry_out(&self, document: &Document<'_>, role: Role, changed: bool) -> Result<()> {
        let node = ThisNode::new(self.config)?;
        let (mounts, namespaces) = (document.mounts()?, document.namespaces()?);
        let restores = self.start.verb == Verb::Restore;
        let facts = Facts {
            role,
            mounts: &mounts,
            namespaces: &namespaces,
            restores,
        };
        match plan(&facts, self.config, &node)? {
            Plan::PassOn if changed => Ok(self.file.replace(&document.apply(&[])?)?),
            Plan::PassOn => Ok(()),
            Plan::Sandbox(plan) => self.sandbox(document, &plan),
            Plan::Member(plan) => self.member(document, &plan),
        }
    }

    fn sandbox(&self, document: &Document<'_>, plan: &SandboxPlan) -> Result<()> {
        let (crust, state) = self.directories()?;
        let context = self.context(&crust, &state);
        if let Some(other) = state.sandbox(&self.id()?)?
            && other.process.is_alive()
        {
            let pid = other.process.pid;
            bail!("sandbox {} exists already, its process is {pid}", other.id);
        }
        let mut needs = Vec::new();
        for target in &plan.volumes {
            needs.push((target.clone(), volume::needs(&context, target)?));
        }
        let bundle = self.bundle()?;
        let root = document.root_path()?.unwrap_or_default();
        let rootfs = bundle.join(&*root);
        let rootfs = rootfs
            .canonicalize()
            .with_context(|| format!("realpath {}", rootfs.display()))?;
        let rewrite = rewrite::sandbox(bundle, &rootfs, plan, &needs, &self.hooks()?)?;
        self.commit(&state, &rewrite.record, &rewrite.apply(document)?)
    }

    /// Writes the record, then the config: a config without its record couldn't be undone.
    fn commit(&self, state: &StateDirectory, record: &BundleRecord, text: &[u8]) -> Result<()> {
        let name = self.record_name();
        state.write_bundle(name, record)?;
        if let Err(error) = self.file.replace(text) {
            state.remove_bundle(name)?;
            return Err(error.into());
        }
        Ok(())
    }

    /// The text of the config as it was before an earlier create rewrote it.
    fn undo(&self, document: &Document<'_>) -> Result<Vec<u8>> {
        let record = self.earlier_record()?;
        let Some(record) = record else {
            let attach = self.config.attach_directory();
            bail!(
                "bundle {}: config.json was rewritten by an earlier create (it names {} or a \
                 /.crust), of which no record is left; hint: write the bundle's config.json anew",
                self.start.bundle.display(),
                attach.display(),
            );
        };
        let edits: Vec<Edit> = rewrite::undo(document, &record, self.config)?;
        Ok(document.apply(&edits)?)
    }

    /// The record of this bundle, which may have been created under another id.
    fn earlier_record(&self) -> Result<Option<BundleRecord>> {
        let Some(state) = StateDirectory::open(&self.config.state_dir)? else {
            return Ok(None);
        };
        let bundle = self.bundle()?;
        let own = state
            .bundle(self.record_name())?
            .filter(|record| record.is_of(&bundle));
        if own.is_some() {
            return Ok(own);
        }
        let mut records = state.bundles()?.into_iter().map(|(_, record)| record);
        Ok(records.find(|record| record.is_of(&bundle)))
    }

    fn record_name(&self) -> Digest {
        BundleRecord::name(self.globals.root.as_deref(), &self.start.id)
    }

    fn directories(&self) -> Result<(CrustDirectory, StateDirectory)> {
        let crust = CrustDirectory::create(&self.config.crust_root)?;
        Ok((crust, StateDirectory::create(&self.config.state_dir)?))
    }

    fn context<'a>(&'a self, crust: &'a CrustDirectory, state: &'a StateDirectory) -> Context<'a> {
        Context {
            config: self.config,
            crust,
            state,
            deadline: Deadline::after(LIMIT),
        }
    }

    fn id(&self) -> Result<String> {
        let id = self.start.id.to_str();
        id.map(str::to_owned)
            .ok_or_else(|| anyhow!("container id {} isn't UTF-8", self.start.id.display()))
    }

    fn bundle(&self) -> Result<PathBuf> {
        let bundle = &self.start.bundle;
        bundle
            .canonicalize()
            .with_context(|| format!("realpath {}", bundle.display()))
    }

    fn hooks(&self) -> Result<Hooks> {
        let own = Path::new("/proc/self/exe");
        let own = own.canonicalize().context("readlink(\"/proc/self/exe\")")?;
        let beside = || own.with_file_name("crust-mount-hook");
        let program = self.config.hook.clone().unwrap_or_else(beside);
        std::fs::metadata(&program).with_context(|| {
            format!(
                "stat {}; hint: install crust-mount-hook beside runcrust",
                program.display()
            )
        })?;
        // By the name it was called as it finds the same configuration again.
        let called = self
            .argv0
            .map(PathBuf::from)
            .filter(|path| path.is_absolute());
        let cli = called.unwrap_or(own);
        Ok(Hooks {
            program,
            cli,
            config: self.config.source.clone(),
        })
    }
}

//! `create`, `run` and `restore`: the bundle is read, planned, mounted and rewritten, in this
//! order, before the delegate gets it.

mod bundle;
mod container;
mod lend;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use crust_mount::privileges::{self, Step};
use crust_mount::volume::{self, Context};
use crust_state::bundle::BundleRecord;
use crust_state::foreign::ForeignFile;
use crust_state::lock::Lock;
use crust_state::{Config, CrustDirectory, Deadline, StateDirectory};
use rustix::fs::{Access, FileType, access, stat};

use crate::invocation::{Flavour, Globals, Start, Verb};
use crate::node::ThisNode;
use crate::oci::{Document, Reader};
use crate::plan::{Facts, Look, Plan, SandboxPlan, passes_on, plan};
use crate::rewrite::{self, Hooks, Made};
use crate::role::Role;

use bundle::Bundle;

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

/// The largest config that is rewritten, and written to a record. What the API server, kubelet and
/// CRI let through is far below.
const MOST_BYTES: usize = 16 << 20;

/// Makes a bundle ready for the delegate. Where nothing matches, the config is read once and
/// nothing is written. Otherwise the bundle is locked; the lock is let go by the exec.
pub(crate) fn prepare(job: Job<'_>) -> Result<Option<Lock>> {
    let Some(file) = job.read()? else {
        // The delegate has its own words for that.
        return Ok(None);
    };
    let Some(who) = job.concern(&Document::parse(file.bytes())?)? else {
        return Ok(None);
    };
    // Until the delegate is to have it again.
    let _lowered = privileges::lower(Step::Create)?;
    let text = one_reading(file.bytes()).with_context(|| who.clone())?;
    let document = Document::parse(&text)?;
    if !job.is_rewritten(&document) && job.plan(&document, file.bytes(), &who)? == Plan::PassOn {
        return Ok(None);
    }
    let state = StateDirectory::create(&job.config.state_dir)?;
    let made = job.made()?;
    let lock = Lock::bundle(made.directory(), job.deadline)?;
    // Another create of the same bundle may just have let go of it.
    let Some(file) = job.read()? else {
        return Ok(None);
    };
    let text = one_reading(file.bytes()).with_context(|| who.clone())?;
    let document = Document::parse(&text)?;
    let bundle = if job.is_rewritten(&document) {
        Bundle::undone(&state, &file, made, &document, job.config)?
    } else {
        Bundle::new(&state, &file, made)
    };
    let text = one_reading(bundle.text()).with_context(|| who.clone())?;
    job.carry_out(&Document::parse(&text)?, &bundle, &who)?;
    Ok(Some(lock))
}

/// A config in the form of which there is one reading.
fn one_reading(text: &[u8]) -> Result<Cow<'_, [u8]>> {
    if text.len() > MOST_BYTES {
        bail!(
            "config.json has {} bytes, and with a volume it may have {MOST_BYTES}; hint: what makes \
             it so large? annotations, mounts?",
            text.len()
        );
    }
    let one = Document::parse(text)?.one_reading()?;
    Ok(one.map_or(Cow::Borrowed(text), Cow::Owned))
}

impl Job<'_> {
    /// The configuration, relative to the caller's directory. `None`: there is none.
    fn read(&self) -> Result<Option<ForeignFile>> {
        let config = self.start.config.clone();
        let config = config.unwrap_or_else(|| self.start.bundle.join("config.json"));
        Ok(ForeignFile::read(&config)?)
    }

    /// Whom of ours the config concerns.
    fn concern(&self, document: &Document<'_>) -> Result<Option<String>> {
        if self.is_rewritten(document) {
            return Ok(Some("a bundle that was created before".to_owned()));
        }
        let bundle = self.bundle()?;
        let look = self.look(document, &bundle);
        Ok(look.concern(self.config, &ThisNode::new(self.config)?))
    }

    fn look<'l>(&self, document: &'l Document<'l>, bundle: &'l Path) -> Look<'l> {
        Look {
            document,
            bundle,
            delegate: match self.flavour {
                Flavour::Runc => Reader::Go,
                Flavour::Crun => Reader::C,
            },
        }
    }

    fn bundle(&self) -> Result<PathBuf> {
        std::path::absolute(&self.start.bundle).context("getcwd")
    }

    fn is_rewritten(&self, document: &Document<'_>) -> bool {
        let role = Role::of(|key| document.annotation(key));
        let is_sandbox = matches!(role, Ok(Role::Sandbox { .. }));
        rewrite::is_rewritten(document, is_sandbox, self.config)
    }

    /// Plans a create by the one reading of a config that was `given` with others; `who` is concerned.
    fn plan(&self, document: &Document<'_>, given: &[u8], who: &str) -> Result<Plan> {
        let named = || who.to_owned();
        let mounts = document.mounts().with_context(named)?;
        let namespaces = document.namespaces().with_context(named)?;
        let (bundle, node) = (self.bundle()?, ThisNode::new(self.config)?);
        let facts = Facts {
            role: Role::of(|key| document.annotation(key)),
            bundle: &bundle,
            mounts: &mounts,
            namespaces: &namespaces,
            details: document,
            restores: self.start.verb == Verb::Restore,
        };
        let plan = plan(facts, self.config, &node)?;
        if plan == Plan::PassOn {
            let given = Document::parse(given)?;
            passes_on(self.look(&given, &bundle), self.config, &node)?;
        }
        Ok(plan)
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
        let crust = CrustDirectory::new(self.config);
        let context = self.context(&crust, bundle.state());
        if let Some(other) = bundle.state().sandbox(&self.id()?)?
            && other.process.is_alive()
        {
            let (names, id, pid) = (plan.names(), other.id, other.process.pid);
            bail!(
                "{names}: sandbox {id} exists already, its process is {pid}; hint: delete it \
                 first, or use another id"
            );
        }
        let mut needs = Vec::new();
        for target in &plan.volumes {
            needs.push((target.clone(), volume::needs(&context, target)?));
        }
        let rewritten = || {
            let rootfs = self.rootfs(document)?;
            rewrite::sandbox(&rootfs, plan, &needs, &self.hooks()?)
        };
        let committed = rewritten().and_then(|rewrite| bundle.commit(document, rewrite));
        committed.with_context(|| plan.names())
    }

    /// The root file system's real path, as mountinfo shows it.
    fn rootfs(&self, document: &Document<'_>) -> Result<PathBuf> {
        let root = document.root_path()?.unwrap_or_default();
        let rootfs = self.start.bundle.join(&*root);
        let real = rootfs.canonicalize();
        real.with_context(|| format!("realpath {}", rootfs.display()))
    }

    fn context<'c>(&'c self, crust: &'c CrustDirectory, state: &'c StateDirectory) -> Context<'c> {
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

    fn made(&self) -> Result<Made> {
        let given = match &self.start.config {
            Some(config) => config.clone(),
            None => self.start.bundle.join("config.json"),
        };
        let config = given.canonicalize();
        let config = config.with_context(|| format!("realpath {}", given.display()))?;
        if config.to_str().is_none() {
            bail!(
                "{}: a bundle with volumes is recorded by its path, and that isn't UTF-8; hint: \
                 give the bundle another directory",
                config.display()
            );
        }
        let container = BundleRecord::container(self.globals.root.as_deref(), &self.start.id);
        Ok(Made {
            config,
            containers: vec![container],
        })
    }

    fn hooks(&self) -> Result<Hooks> {
        let own = real_path()?;
        let beside = || own.with_file_name("crust-mount-hook");
        let program = self.config.hook.clone().unwrap_or_else(beside);
        let can_run = access(&program, Access::EXEC_OK).and_then(|()| stat(&program));
        let can_run = can_run.with_context(|| {
            format!(
                "{}; hint: install crust-mount-hook beside runcrust, or set `hook` in its \
                 configuration",
                program.display()
            )
        })?;
        if FileType::from_raw_mode(can_run.st_mode) != FileType::RegularFile {
            bail!(
                "{} isn't a program; hint: set `hook` in runcrust's configuration",
                program.display()
            );
        }
        Ok(Hooks {
            program,
            cli: own_path(self.argv0)?,
            config: self.config.source.clone(),
        })
    }
}

/// By the name that it was called by this program finds the same configuration again.
pub(crate) fn own_path(argv0: Option<&OsString>) -> Result<PathBuf> {
    let called = argv0.map(PathBuf::from).filter(|path| path.is_absolute());
    called.map_or_else(real_path, Ok)
}

fn real_path() -> Result<PathBuf> {
    let own = fs::read_link("/proc/self/exe").context("readlink(\"/proc/self/exe\")")?;
    if own.exists() {
        return Ok(own);
    }
    // Replaced while it runs, as by an upgrade: what stands in its place.
    let place = own.as_os_str().as_bytes().strip_suffix(b" (deleted)");
    let place = place.map(|place| PathBuf::from(OsStr::from_bytes(place)));
    let there = place.filter(|place| place.exists());
    there.ok_or_else(|| anyhow!("{}: ENOENT: it was removed while it runs", own.display()))
}

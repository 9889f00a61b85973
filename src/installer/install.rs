//! `runcrust install`, and the comparison of the node's delegate with the kind that it would be treated as.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::builder::TypedValueParser as _;
use crust_engines::{
    Engine, HandlerRequest, NodeDelegate, NodeRoot, ProgramCopy, check_complete, find_delegate,
    find_engine, plan_copies,
};
use rustix::param::linux_execfn;

use super::engine_args::{EngineArgs, engine_names, shown, tell};
use crate::delegate::default_paths;
use crate::delegate::effective_kind::EffectiveKind;
use crate::delegate::version::{VersionReply, query_version_in};
use crate::programs;

#[derive(Debug, clap::Args)]
pub(super) struct Install {
    /// Whose configuration it is
    #[arg(value_parser = engine_names(&[]).try_map(|name| find_engine(&name).ok_or("no engine")))]
    engine: &'static dyn Engine,
    #[command(flatten)]
    common: EngineArgs,
    /// What the handler runs: an absolute path, whose last part selects runcrust's own
    /// configuration; without it, what this program was called by
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// containerd's `SystemdCgroup` for the handler; without it, as `runc` has it
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    systemd_cgroup: Option<bool>,
    /// First copy runcrust and crust-mount-hook into this directory of the node; the handler runs
    /// that copy
    #[arg(long, value_name = "DIR", conflicts_with = "program")]
    copy_to: Option<PathBuf>,
}

impl Install {
    /// Returns a mistake that clap doesn't see.
    pub(super) fn mistake(&self) -> Option<&'static str> {
        (self.systemd_cgroup.is_some() && !self.engine.info().has_systemd_cgroup)
            .then_some("--systemd-cgroup is containerd's: the others ask for it themselves")
    }

    pub(super) fn run(&self, argv0: Option<&OsString>) -> Result<()> {
        let common = &self.common;
        let node = common.node()?;
        let locked = node.lock()?;
        let copies = match &self.copy_to {
            Some(directory) => plan_copies(&node, directory)?,
            None => Vec::new(),
        };
        let program = match copies.last() {
            Some(runcrust) => runcrust.path.clone(),
            None => self.program.clone().map_or_else(|| called_by(argv0), Ok)?,
        };
        let found = find_delegate(&node, &program, &default_paths());
        let request = HandlerRequest {
            program: Some(program.clone()),
            delegate: found.as_ref().map(|it| it.kind),
            systemd_cgroup: self.systemd_cgroup,
            ..common.request(&node, self.engine)?
        };
        let mut plan = crust_engines::install(&node, &request)?;
        if copies.is_empty() {
            node.check_program(&program)?;
        }
        check_complete(&node, &program, &default_paths(), &copies)?;
        if let Some(found) = &found {
            plan.notes.extend(check_delegate_kind(&node, found)?);
        }
        tell(&shown(&plan))?;
        for copy in &copies {
            carry_over(&node, copy, common.dry_run)?;
        }
        common.carry_out(&node, &request, &plan, locked)?;
        tell(&format!("RuntimeClass handler: {}\n", common.handler))
    }
}

fn carry_over(node: &NodeRoot, copy: &ProgramCopy, is_dry_run: bool) -> Result<()> {
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

/// Returns the path that the operator called, as a shell found it. Its links aren't followed, for the name selects the
/// configuration. The kernel knows the path, whatever `PATH` is by now.
fn called_by(argv0: Option<&OsString>) -> Result<PathBuf> {
    let name = argv0.map_or(Path::new(""), Path::new);
    if name.components().count() > 1 {
        return std::path::absolute(name).context("getcwd");
    }
    let executed = Path::new(OsStr::from_bytes(linux_execfn().to_bytes()));
    let executed = std::path::absolute(executed).context("getcwd")?;
    if executed.file_name() == Some(name.as_os_str()) && programs::is_this_program(&executed) {
        return Ok(executed);
    }
    programs::invocation_path(argv0)
}

/// Asks the delegate what it is. Fails where that is another kind than the one in force: containers would be created
/// by a wrong reading of their command lines. Returns a note where it can't be asked, or answers nothing that is known.
fn check_delegate_kind(node: &NodeRoot, delegate: &NodeDelegate) -> Result<Option<String>> {
    let (path, kind) = (delegate.path.display(), delegate.kind.name());
    let treated = |why: &str| Ok(Some(format!("{path} is treated as {kind}{why}")));
    // A program that others can change isn't run as root.
    if let Err(error) = node.check_program(&delegate.path) {
        return treated(&format!(", and wasn't run to check that: {error}"));
    }
    let there = if node.is_here() { "" } else { " on the node" };
    let identity = EffectiveKind {
        path: &delegate.path,
        kind: delegate.kind,
        configured: &delegate.configured,
        config_file: format!("{}{there}", delegate.file.display()),
    };
    let said = query_version_in(node.path(), &delegate.path);
    if let Some(mismatch) = identity.mismatch(&said) {
        bail!("{}; hint: {}", mismatch.found, mismatch.hint);
    }
    match said {
        VersionReply::Version(name, _) if name == kind => Ok(None),
        VersionReply::Version(name, version) => treated(&format!(
            ", and says that it is {name} {version}, which wasn't tried"
        )),
        VersionReply::Unrecognized(why) | VersionReply::NotRun(why) => treated(&format!(
            ", which can't be checked from here: --version: {why}; hint: call `runcrust crust doctor` \
             on the node"
        )),
    }
}

//! `runcrust install`. It also checks that the node's delegate is the kind of runtime that it will be treated as.

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

use super::engine_args::{EngineArgs, describe_plan, engine_names, print};
use crate::delegate::default_paths;
use crate::delegate::effective_kind::EffectiveKind;
use crate::delegate::version::{VersionReply, query_version_in};
use crate::programs;

#[allow(
    clippy::doc_markdown,
    reason = "clap prints the comments as help, without markup"
)]
#[derive(Debug, clap::Args)]
pub(super) struct Install {
    /// Container engine to add the handler to
    #[arg(value_parser = engine_names(&[]).try_map(|name| find_engine(&name).ok_or("no engine")))]
    engine: &'static dyn Engine,
    #[command(flatten)]
    common: EngineArgs,
    /// Absolute path of the program that the handler runs; its file name selects runcrust's own
    /// configuration [default: the path that this program was called by]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// containerd's SystemdCgroup for the handler [default: that of the handler runc]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    systemd_cgroup: Option<bool>,
    /// First copy runcrust and crust-mount-hook into this directory of the node; the handler then
    /// runs the copy
    #[arg(long, value_name = "DIR", conflicts_with = "program")]
    copy_to: Option<PathBuf>,
}

impl Install {
    /// Returns the error for a conflict of arguments that clap doesn't detect.
    pub(super) fn conflict(&self) -> Option<&'static str> {
        (self.systemd_cgroup.is_some() && !self.engine.info().has_systemd_cgroup).then_some(
            "--systemd-cgroup is only for containerd: the other engines pass it to the runtime themselves",
        )
    }

    pub(super) fn run(&self, argv0: Option<&OsString>) -> Result<()> {
        let common = &self.common;
        let node = common.node()?;
        let lock = node.lock()?;
        let copies = match &self.copy_to {
            Some(directory) => plan_copies(&node, directory)?,
            None => Vec::new(),
        };
        let program = match copies.last() {
            Some(runcrust) => runcrust.path.clone(),
            None => self
                .program
                .clone()
                .map_or_else(|| called_path(argv0), Ok)?,
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
        print(&describe_plan(&plan))?;
        for copy in &copies {
            copy_program(&node, copy, common.dry_run)?;
        }
        common.apply(&node, &request, &plan, lock)?;
        print(&format!("RuntimeClass handler: {}\n", common.handler))
    }
}

fn copy_program(node: &NodeRoot, copy: &ProgramCopy, is_dry_run: bool) -> Result<()> {
    if !is_dry_run {
        copy.apply(node)?;
    }
    let action = match (copy.is_same, is_dry_run) {
        (true, _) => "already there",
        (false, true) => "would be copied",
        (false, false) => "copied",
    };
    print(&format!("{}: {action}\n", copy.path.display()))
}

/// Returns the path of this program as the operator called it, or as the shell found it in `PATH`. Symbolic links
/// aren't resolved, since the file name selects the configuration. The path comes from the kernel (`AT_EXECFN`), as
/// `PATH` needn't lead to this program.
fn called_path(argv0: Option<&OsString>) -> Result<PathBuf> {
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

/// Runs the delegate's `--version`. Fails if it is another kind of runtime than the one it will be treated as, since
/// command lines would be parsed wrongly. Returns a note if it can't be run, or if its reply isn't recognised.
fn check_delegate_kind(node: &NodeRoot, delegate: &NodeDelegate) -> Result<Option<String>> {
    let (path, kind) = (delegate.path.display(), delegate.kind.name());
    let treated_as = |reason: &str| Ok(Some(format!("{path} is treated as {kind}{reason}")));
    // A program that users other than root can change isn't run as root.
    if let Err(error) = node.check_program(&delegate.path) {
        return treated_as(&format!(", which wasn't checked by running it: {error}"));
    }
    let location = if node.is_own_root() {
        ""
    } else {
        " on the node"
    };
    let identity = EffectiveKind {
        path: &delegate.path,
        kind: delegate.kind,
        configured: &delegate.configured,
        config_file: format!("{}{location}", delegate.file.display()),
    };
    let reply = query_version_in(node.path(), &delegate.path);
    if let Some(mismatch) = identity.mismatch(&reply) {
        bail!("{}; hint: {}", mismatch.found, mismatch.hint);
    }
    match reply {
        VersionReply::Version(name, _) if name == kind => Ok(None),
        VersionReply::Version(name, version) => treated_as(&format!(
            ", and says that it is {name} {version}, which isn't tested with runcrust"
        )),
        VersionReply::Unrecognized(reason) | VersionReply::NotRun(reason) => treated_as(&format!(
            ", which can't be checked from here: --version: {reason}; hint: run `runcrust crust doctor` \
             on the node"
        )),
    }
}

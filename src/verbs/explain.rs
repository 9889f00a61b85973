//! `explain`: prints what a create of a bundle would do.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::record::User;
use crust_state::{Config, CrustDirectory, DelegateKind, timeouts};
use crust_volume::{EntryLayout, MountPreview, VolumeAccess};
use serde_json::Value;

use super::Failure;
use super::output::{CommandOutput, OutputFormat, Printable, Table};
use crate::delegate::Delegate;
use crate::explain::{ExplainedMount, ExplainedVolume, Explanation, explain};
use crate::invocation::{CreateCommand, CreateVerb, GlobalFlags};
use crate::matching::MatchedBy;
use crate::plan::{MountedIn, Plan, PlannedMount};
use crate::report::ErrorReporter;
use crate::role::{Role, RoleError};
use crate::start::CreateCall;

#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// Directory of the bundle
    bundle: PathBuf,
    /// Config to read instead of the bundle's config.json, as it would be given to "create"
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) fn run(
    arguments: ExplainArgs,
    argv0: Option<&OsString>,
    config: &Config,
) -> Result<CommandOutput, Failure> {
    let bundle = arguments.bundle;
    let real = real_bundle(&bundle)?;
    let command = CreateCommand {
        verb: CreateVerb::Create,
        config: arguments.config,
        // containerd names the bundle's directory after the container.
        id: real.file_name().unwrap_or_default().to_owned(),
        bundle,
    };
    let crust = CrustDirectory::new(config);
    let delegate = config.delegate_settings();
    // A missing delegate isn't an error here. `doctor` reports it.
    let delegate_kind = match Delegate::find(&delegate) {
        Ok(delegate) => delegate.kind(),
        Err(_) => delegate.kind.unwrap_or(DelegateKind::Runc),
    };
    let globals = GlobalFlags::default();
    let call = CreateCall {
        command: &command,
        globals: &globals,
        config,
        crust: &crust,
        delegate_kind,
        argv0,
        deadline: Deadline::after(timeouts::CREATE),
        loop_devices: &LoopDeviceCache::default(),
        reporter: &ErrorReporter::new(delegate_kind, &globals, None),
    };
    let path = call.config_path();
    let file = call
        .read_config()
        .map_err(|error| Failure::internal(error.as_ref()))?;
    let file = file.ok_or_else(|| {
        Failure::not_found(format!(
            "{}: there is no such file; hint: give the config with --config if it is elsewhere",
            path.display()
        ))
    })?;
    Ok(CommandOutput::new(
        &explain(call, file.bytes()),
        arguments.format,
    ))
}

/// Returns the bundle's real path. Fails if it isn't a directory.
fn real_bundle(bundle: &Path) -> Result<PathBuf, Failure> {
    let given = bundle.display();
    let real = bundle
        .canonicalize()
        .map_err(|error| Failure::not_found(format!("bundle {given}: realpath: {error}")))?;
    if real.is_dir() {
        return Ok(real);
    }
    Err(Failure::invalid(format!(
        "{given} isn't a directory; hint: give the bundle, the directory with config.json: {}; for a config with \
         another name use --config",
        real.parent().unwrap_or(&real).display()
    )))
}

impl Printable for Explanation {
    fn json(&self) -> Value {
        // This can't fail: all keys are strings.
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut head = Table::default();
        head.row(["config", &self.config]);
        if self.rewritten {
            let note = "by an earlier create; the rest describes the config before that rewrite";
            head.row(["rewritten", note]);
        }
        if let Some(role) = &self.role {
            head.row(["role", &describe_role(&role.role)]);
            for (key, value) in &role.annotations {
                head.row(["", &format!("{key}={value}")]);
            }
        }
        if let Some(plan) = &self.plan {
            head.row(["plan", &describe_plan(plan)]);
        }
        for refusal in &self.refusals {
            head.row(["refused", refusal]);
        }
        write!(formatter, "{head}")?;
        if !self.mounts.is_empty() {
            write!(formatter, "\n\n{}", mount_table(&self.mounts))?;
        }
        if !self.volumes.is_empty() {
            write!(formatter, "\n\n{}", volume_table(&self.volumes))?;
        }
        if !self.diff.is_empty() {
            let mut diff = Table::default();
            for line in self.diff.lines() {
                diff.row([line]);
            }
            write!(formatter, "\n\n{diff}")?;
        }
        Ok(())
    }
}

fn describe_role(role: &Result<Role, RoleError>) -> String {
    match role {
        Ok(Role::Sandbox { pod_uid: Some(uid) }) => format!("the sandbox of pod {uid}"),
        Ok(Role::Sandbox { pod_uid: None }) => "the sandbox of a pod without a uid".to_owned(),
        Ok(Role::AppContainer {
            sandbox_id,
            pod_uid: Some(uid),
        }) => format!("a container of pod {uid}, in sandbox {sandbox_id}"),
        Ok(Role::AppContainer {
            sandbox_id,
            pod_uid: None,
        }) => format!("a container in sandbox {sandbox_id}"),
        Ok(Role::Standalone) => {
            "a container without a pod: there are no CRI annotations".to_owned()
        }
        Err(error) => format!("unknown: {error}"),
    }
}

fn describe_plan(plan: &Plan) -> String {
    match plan {
        Plan::PassThrough => "pass through: the delegate gets the bundle unchanged".to_owned(),
        Plan::Sandbox(plan) => {
            let directory = plan.directory;
            format!("sandbox: a hook mounts the pod's volumes in it, below {directory}")
        }
        Plan::Container(plan) => {
            let method = match &plan.mounted_in {
                MountedIn::Sandbox(record) => format!(
                    "its volumes are mounted in sandbox {} (process {}), and bind-mounted from there",
                    record.id, record.process.pid
                ),
                MountedIn::Container(_) => {
                    "its volumes are mounted for this container alone, and bind-mounted into it"
                        .to_owned()
                }
                MountedIn::Hook(_) => {
                    "a hook mounts its volumes in the container, which gets their devices"
                        .to_owned()
                }
            };
            let ids = plan
                .ids
                .as_ref()
                .map_or("", |_| "; ids are mapped for its user namespace");
            format!("container: {method}{ids}")
        }
    }
}

fn mount_table(mounts: &[ExplainedMount]) -> Table {
    let mut table = Table::default();
    table.row(["MOUNT", "DESTINATION", "SOURCE", "VOLUME"]);
    for mount in mounts {
        let volume = match (&mount.planned, &mount.error, &mount.note) {
            (Some(planned), ..) => describe_match(planned),
            (_, Some(error), _) => format!("refused: {error}"),
            (_, _, Some(note)) => format!("none: {note}"),
            _ => "-".to_owned(),
        };
        let index = mount.index.to_string();
        let source = mount.source.as_deref().unwrap_or("-");
        table.row([&index, &mount.destination, source, &volume]);
    }
    table
}

fn describe_match(planned: &PlannedMount) -> String {
    let found = &planned.found;
    let by = match &found.by {
        MatchedBy::Exact => "the exact source".to_owned(),
        MatchedBy::Parent { prefix } => format!("the parent {prefix}"),
        MatchedBy::SubpathBind => "kubelet's bind of a subPath".to_owned(),
        MatchedBy::Bind => "a bind mount of its directory".to_owned(),
    };
    let mut parts = vec![format!("{}, by {by}", found.volume.volume_name())];
    if let Some(resolved) = &found.resolved {
        parts.push(format!("through links: {resolved}"));
    }
    if !found.subpath.as_os_str().is_empty() {
        parts.push(format!("subPath {}", found.subpath.display()));
    }
    if planned.read_only {
        parts.push("read-only".to_owned());
    }
    if planned.maps_ids {
        parts.push("ids mapped by the delegate".to_owned());
    }
    parts.join("; ")
}

fn volume_table(volumes: &[ExplainedVolume]) -> Table {
    let mut table = Table::default();
    table.row(["VOLUME", "DEVICE", "FILE SYSTEM", "HOW"]);
    for volume in volumes {
        let name = &*volume.volume;
        let problem = volume.problem.as_deref();
        let Some(preview) = &volume.preview else {
            table.row([name, "-", "-", problem.unwrap_or("-")]);
            continue;
        };
        let device = match preview.device_number {
            Some(number) => format!("{} ({number})", preview.device.display()),
            None => preview.device.display().to_string(),
        };
        let mode = if preview.read_only { "ro" } else { "rw" };
        let mut options = vec![mode];
        options.extend(preview.options.iter().map(String::as_str));
        let file_system = format!("{} ({})", preview.fstype, options.join(","));
        let users = volume.users.as_deref().unwrap_or_default();
        table.row([
            name,
            &device,
            &file_system,
            &describe_use(preview, users, problem),
        ]);
    }
    table
}

fn describe_use(preview: &MountPreview, users: &[User], problem: Option<&str>) -> String {
    let users: Vec<String> = users.iter().map(ToString::to_string).collect();
    let mut parts = vec![match &preview.access {
        Ok(VolumeAccess::First) => "first mount".to_owned(),
        Ok(VolumeAccess::Joins) => format!("joins {}", users.join(", ")),
        Ok(VolumeAccess::Mounted) => "already mounted".to_owned(),
        Err(_) => problem.unwrap_or_default().to_owned(),
    }];
    if let (Some(group), Some(policy)) = (preview.fs_group, preview.fs_group_change_policy) {
        parts.push(format!("fsGroup {group}, {policy}"));
    }
    if let Some(mode) = preview.access_mode {
        parts.push(mode.to_owned());
    }
    if preview.device_node {
        parts.push("with the raw device".to_owned());
    }
    if preview.layout == EntryLayout::Kata {
        parts.push("staged in Kata's layout".to_owned());
    }
    parts.join("; ")
}

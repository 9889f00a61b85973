//! Mounts volumes: a pod's volumes in its new sandbox (createRuntime), or a container's volumes in the container
//! (createContainer, `mount_mode = "hook"`).

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use crust_blockfs::view::{DetachedMount, View};
use crust_state::record::Version;
use crust_state::sandbox::{MountFailure, SandboxRecord};
use crust_state::{Process, StateDirectory, TargetPath, error_message};
use crust_volume::rootfs::{self, Rootfs, ScratchDirectory};
use crust_volume::sandbox::Sandbox;
use crust_volume::{
    Context, SandboxRequest, VolumeError, Watchdog, ensure_mounted, lock, mount_reserved,
};

use crate::input::{ContainerState, MountArgs, SandboxArgs};

/// Mounts the container's volumes, and their views at the destinations, in the order of the config. This runs in the
/// container's mount namespace and device cgroup, where `/` is still the host's.
pub(crate) fn into_container(
    context: &Context<'_>,
    container: &ContainerState,
    arguments: &MountArgs,
) -> Result<()> {
    let mut volumes: BTreeMap<TargetPath, Vec<usize>> = BTreeMap::new();
    for (index, mount) in arguments.mounts.iter().enumerate() {
        let indices = volumes.entry(TargetPath::new(&mount.volume)?);
        indices.or_default().push(index);
    }
    let names: Vec<String> = volumes.keys().map(TargetPath::volume_name).collect();
    let subject = || format!("volume {}", names.join(", "));
    let mut rootfs = Rootfs::open(&arguments.rootfs).with_context(subject)?;
    let scratch =
        ScratchDirectory::open(&context.config.attach_directory()).with_context(subject)?;
    let hook = ContainerHook {
        context,
        container,
        arguments,
        scratch: &scratch,
    };
    let mut views: BTreeMap<usize, DetachedMount> = BTreeMap::new();
    for (target, indices) in &volumes {
        let volume_views = hook.mount_volume(target, indices)?;
        views.extend(indices.iter().copied().zip(volume_views));
    }
    for (index, view) in &views {
        let mount = &arguments.mounts[*index];
        let attributes = rootfs::bind_attributes(&mount.options).with_context(subject)?;
        rootfs
            .mount(view, &mount.destination, attributes, context.deadline)
            .with_context(|| {
                let target = TargetPath::new(&mount.volume);
                target.map_or_else(|_| subject(), |it| format!("volume {}", it.volume_name()))
            })?;
    }
    Ok(())
}

/// The `mount` hook of one container.
struct ContainerHook<'a> {
    context: &'a Context<'a>,
    container: &'a ContainerState,
    arguments: &'a MountArgs,
    scratch: &'a ScratchDirectory,
}

impl ContainerHook<'_> {
    /// Mounts a volume, and returns a view of it for each of the mounts with these indices.
    fn mount_volume(&self, target: &TargetPath, indices: &[usize]) -> Result<Vec<DetachedMount>> {
        let (context, arguments) = (self.context, self.arguments);
        let locked = lock(context, target)?;
        let label = arguments.label.as_deref();
        let volume = mount_reserved(context, &locked, &self.container.id, &arguments.cli, label)?;
        let mounts = indices.iter().map(|index| &arguments.mounts[*index]);
        let views = mounts.map(|mount| View {
            subpath: &mount.subpath,
            read_only: mount.read_only,
            ids: None,
        });
        self.scratch
            .take_views(&volume, views, context.deadline)
            .with_context(|| format!("volume {}", target.volume_name()))
    }
}

/// Records the sandbox, and mounts the volumes that are staged for its pod below its `/.crust`.
///
/// A volume that can't be mounted doesn't fail the hook, because crun would lose the message. The message is kept in
/// the sandbox's record. The create of a container with the volume retries, and reports the error.
pub(crate) fn into_sandbox(
    context: &Context<'_>,
    container: &ContainerState,
    arguments: &SandboxArgs,
) -> Result<()> {
    let process = Process::from_pid(container.pid)
        .with_context(|| format!("process {} of the new sandbox", container.pid))?;
    let sandbox = Sandbox::open_during_create(&container.id, container.pid, &arguments.rootfs)?;
    let mut record = SandboxRecord {
        version: Version,
        id: container.id.clone(),
        pod_uid: arguments.pod_uid.clone(),
        process,
        mount_label: arguments.label.clone(),
        failures: Vec::new(),
    };
    context.state.write_sandbox(&record)?;
    for target in &arguments.volumes {
        let request = SandboxRequest {
            sandbox: &sandbox,
            record: &record,
            cli: &arguments.cli,
            label: arguments.label.as_deref(),
        };
        if let Err(error) = mount(context, target, request) {
            record_failure(&mut record, target, &error);
        }
    }
    if !record.failures.is_empty() {
        context.state.write_sandbox(&record)?;
    }
    Ok(())
}

fn mount(
    context: &Context<'_>,
    target: &TargetPath,
    request: SandboxRequest<'_>,
) -> Result<(), VolumeError> {
    let locked = lock(context, target)?;
    let _watchdog = {
        let (target, mut record) = (target.clone(), request.record.clone());
        let state_directory = context.config.state_dir.clone();
        Watchdog::watch(context, locked.volume(), move |error| {
            record_failure(&mut record, &target, &error);
            let written = StateDirectory::create(&state_directory)
                .map_err(anyhow::Error::from)
                .and_then(|state| Ok(state.write_sandbox(&record)?));
            if let Err(error) = written {
                crate::report_error(&error_message(error.as_ref()));
            }
            0
        })?
    };
    ensure_mounted(context, &locked, request)
}

fn record_failure(record: &mut SandboxRecord, target: &TargetPath, error: &VolumeError) {
    let message = error.to_string();
    tracing::warn!(sandbox = record.id, "{message}");
    record.failures.push(MountFailure {
        volume: target.digest(),
        message,
    });
}

//! createRuntime of a sandbox: the pod's volumes are mounted into it.

use anyhow::{Context as _, Result};
use crust_state::record::Version;
use crust_state::sandbox::{Failure, SandboxRecord};
use crust_state::{Process, TargetPath};
use crust_volume::sandbox::Sandbox;
use crust_volume::{Context, Host, ensure, lock};

use crate::arguments;
use crate::state::ContainerState;

/// Marks the sandbox's `/.crust`, records the sandbox, and mounts what is staged for its pod.
///
/// A volume that can't be mounted doesn't fail the hook: crun would lose the message. It is kept
/// in the record, and the create of the container that wants the volume tries again and reports.
pub(crate) fn run(
    context: &Context<'_>,
    container: &ContainerState,
    told: &arguments::Sandbox,
) -> Result<()> {
    let process = Process::of(container.pid)
        .with_context(|| format!("process {} of the new sandbox", container.pid))?;
    let sandbox = Sandbox::being_created(&container.id, container.pid, &told.rootfs)?;
    let mut record = SandboxRecord {
        version: Version,
        id: container.id.clone(),
        pod_uid: told.pod_uid.clone(),
        process,
        mount_label: told.label.clone(),
        failures: Vec::new(),
    };
    context.state.write_sandbox(&record)?;
    for target in &told.volumes {
        let host = Host {
            sandbox: &sandbox,
            record: &record,
            cli: &told.cli,
            label: told.label.as_deref(),
        };
        if let Err(message) = mount(context, target, host) {
            tracing::warn!(sandbox = container.id, "{message}");
            record.failures.push(Failure {
                volume: target.digest(),
                message,
            });
        }
    }
    if !record.failures.is_empty() {
        context.state.write_sandbox(&record)?;
    }
    Ok(())
}

fn mount(context: &Context<'_>, target: &TargetPath, host: Host<'_>) -> Result<(), String> {
    let locked = lock(context, target).map_err(|error| error.to_string())?;
    ensure(context, &locked, host).map_err(|error| error.to_string())
}

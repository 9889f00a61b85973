//! `publish`: a volume is mounted in a sandbox that runs (KEP-2857's earlier draft).

use std::ffi::OsString;
use std::path::Path;

use crust_state::TargetPath;
use crust_state::sandbox::SandboxRecord;
use crust_state::state_directory::StateError;
use crust_volume::sandbox::Sandbox;
use crust_volume::{Code, Context, HostSandbox};
use serde_json::{Value, json};

use super::stage::VolumeArguments;
use super::{Failure, target};

#[derive(Debug, clap::Args)]
pub(super) struct PublishArgs {
    /// The path where the volume would have been mounted on the host
    target_path: OsString,
    /// The sandbox, as the CRI runtime names it
    #[arg(long, value_name = "ID")]
    sandbox: String,
    #[command(flatten)]
    volume: VolumeArguments,
}

pub(super) fn publish(
    context: &Context<'_>,
    arguments: PublishArgs,
    cli: &Path,
) -> Result<Value, Failure> {
    let target = target(arguments.target_path)?;
    let record = context.state.sandbox(&arguments.sandbox);
    let record = record.map_err(|error| match error {
        StateError::Id(error) => Failure::invalid(error),
        error => Failure::internal(&error),
    })?;
    let record = record.ok_or_else(|| no_place(&target, &arguments.sandbox))?;
    belongs(&target, &record)?;
    let sandbox = Sandbox::of(&record).map_err(|error| Failure {
        code: Code::FailedPrecondition,
        message: format!("volume {}: {error}", target.volume_name()),
    })?;
    let host = HostSandbox {
        sandbox: &sandbox,
        record: &record,
        cli,
        label: record.mount_label.as_deref(),
    };
    let info = arguments.volume.mount_info(&target);
    crust_volume::stage_mounted(context, &target, &info, host)?;
    Ok(json!({}))
}

fn no_place(target: &TargetPath, sandbox: &str) -> Failure {
    Failure {
        code: Code::FailedPrecondition,
        message: format!(
            "volume {}: there is no record of sandbox {sandbox}: it was made without a place for \
             volumes, or has ended; hint: sandbox = \"always\" in runcrust's configuration gives \
             every new one a place",
            target.volume_name()
        ),
    }
}

/// A target path that names a pod is that pod's.
fn belongs(target: &TargetPath, record: &SandboxRecord) -> Result<(), Failure> {
    match target.pod_uid() {
        Some(owner) if owner != &*record.pod_uid => Err(Failure {
            code: Code::InvalidArgument,
            message: format!(
                "volume {}: its target path is of pod {}, and sandbox {} was made for pod {}; \
                 hint: a pod can only have its own volumes",
                target.volume_name(),
                owner.display(),
                record.id,
                record.pod_uid
            ),
        }),
        _ => Ok(()),
    }
}

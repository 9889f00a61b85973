//! Grows a file system to the size of its volume, by whoever has it mounted.

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{CapacityRange, NodeExpandVolumeRequest};

use super::{Context, OperationError, Publication, Telling, secret};
use crate::csi::{Lacks, Publish, capability};
use crate::objects::Objects;
use crate::volumes::actual::Mounter;
use crate::volumes::spec::VolumeSpec;

/// A published volume whose file system is to grow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expansion<'a> {
    pub(crate) publication: &'a Publication,
    pub(crate) volume: &'a VolumeSpec,
    /// The new size in bytes.
    pub(crate) size: i64,
    /// The runtime handler that has it mounted.
    pub(crate) runtime: Option<&'a Telling>,
}

/// Calls the driver's `NodeExpandVolume`.
pub(crate) async fn expand(
    context: &Context,
    objects: &Objects,
    expansion: Expansion<'_>,
) -> Result<(), OperationError> {
    let Expansion {
        publication,
        volume,
        size,
        runtime,
    } = expansion;
    let Publication {
        id, pod, directory, ..
    } = publication;
    let driver = context.driver(id)?;
    let capabilities = driver.node_capabilities().await?;
    let defer_fs_ops = publication.mounter == Mounter::Deferred;
    if defer_fs_ops && !capabilities.has(Rpc::DeferFsOps) {
        return Err(Lacks::deferral(&id.driver).into());
    }
    let runtime_supports_expand = match runtime {
        Some(runtime) => runtime.expands().await?,
        None => false,
    };
    let publish = Publish {
        defer_fs_ops,
        ..Publish::default()
    };
    let request = NodeExpandVolumeRequest {
        volume_id: id.handle.clone(),
        volume_path: context.layout.target(pod, directory).display().to_string(),
        capacity_range: Some(CapacityRange {
            required_bytes: size,
            limit_bytes: 0,
        }),
        staging_target_path: context.layout.staging(id).display().to_string(),
        volume_capability: Some(capability(volume, &capabilities, &publish)),
        secrets: secret(objects, volume.expand_secret.as_ref())?,
        defer_fs_ops,
        runtime_supports_expand,
    };
    let answer = driver.call(request).await?;
    if let Some(runtime) = runtime.filter(|_| !answer.source.is_empty()) {
        runtime.expand(&answer.source, size).await?;
    }
    Ok(())
}

//! Usage, health and expansion of a published volume, by its driver or by the runtime handler that has mounted it.

use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
};

use super::{Context, MountingRuntime, OperationError, Publication, secret};
use crate::csi::{LacksCapability, PublishOptions, volume_capability};
use crate::objects::Objects;
use crate::volumes::actual::Mounter;
use crate::volumes::spec::VolumeSpec;
use crate::volumes::stats::{Stats, VolumeCondition};

/// Calls `NodeGetVolumeStats`. Returns `None` if the driver lacks that call. If the response has no condition, it is
/// taken from `NodeGetVolumeHealth`, provided that the driver has that call and it succeeds.
pub(crate) async fn stats(
    context: &Context,
    publication: &Publication,
    runtime: Option<&MountingRuntime>,
) -> Result<Option<Stats>, OperationError> {
    let Publication {
        id, pod, directory, ..
    } = publication;
    let driver = context.driver(id)?;
    let capabilities = driver.node_capabilities().await?;
    if !capabilities.has(Rpc::GetVolumeStats) {
        return Ok(None);
    }
    let defer_fs_ops = publication.mounter == Mounter::Deferred;
    if defer_fs_ops && !capabilities.has(Rpc::DeferFsOps) {
        return Err(LacksCapability::deferral(&id.driver).into());
    }
    let runtime_supported_stats = match runtime {
        Some(runtime) => runtime.supports_stats().await?,
        None => false,
    };
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.handle.clone(),
        volume_path: context.layout.target(pod, directory).display().to_string(),
        staging_target_path: context.layout.staging(id).display().to_string(),
        defer_fs_ops,
        runtime_supported_stats,
    };
    let response = driver.call(request).await?;
    if let Some(runtime) = runtime.filter(|_| !response.source.is_empty()) {
        return Ok(Some(runtime.stats(&response.source).await?));
    }
    let mut stats = Stats::from(response);
    // CSI 1.13 replaces `volume_condition` with a separate call.
    if stats.condition.is_none() && capabilities.has(Rpc::GetVolumeHealth) {
        let request = NodeGetVolumeHealthRequest {
            volume_id: id.handle.clone(),
            volume_publish_path: context.layout.target(pod, directory).display().to_string(),
            staging_target_path: context.layout.staging(id).display().to_string(),
        };
        match driver.call(request).await {
            Ok(response) => stats.condition = response.volume_health.map(VolumeCondition::from),
            // The usage is still valid.
            Err(error) => {
                let error = crust_state::error_message(&error);
                tracing::warn!("cannot get the health of volume {id} in pod {pod}: {error}");
            }
        }
    }
    Ok(Some(stats))
}

/// The expansion of the file system of a published volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expansion<'a> {
    pub(crate) publication: &'a Publication,
    pub(crate) volume: &'a VolumeSpec,
    /// The new size in bytes.
    pub(crate) size: i64,
    /// The runtime handler that has mounted the volume.
    pub(crate) runtime: Option<&'a MountingRuntime>,
}

/// Calls the driver's `NodeExpandVolume`.
pub(crate) async fn node_expand(
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
        return Err(LacksCapability::deferral(&id.driver).into());
    }
    let runtime_supports_expand = match runtime {
        Some(runtime) => runtime.supports_expansion().await?,
        None => false,
    };
    let publish = PublishOptions {
        defer_fs_ops,
        ..PublishOptions::default()
    };
    let request = NodeExpandVolumeRequest {
        volume_id: id.handle.clone(),
        volume_path: context.layout.target(pod, directory).display().to_string(),
        capacity_range: Some(CapacityRange {
            required_bytes: size,
            limit_bytes: 0,
        }),
        staging_target_path: context.layout.staging(id).display().to_string(),
        volume_capability: Some(volume_capability(volume, &capabilities, &publish)),
        secrets: secret(objects, volume.expand_secret.as_ref())?,
        defer_fs_ops,
        runtime_supports_expand,
    };
    let response = driver.call(request).await?;
    if let Some(runtime) = runtime.filter(|_| !response.source.is_empty()) {
        runtime.expand(&response.source, size).await?;
    }
    Ok(())
}

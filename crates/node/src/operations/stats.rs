//! How full a published volume is, by whoever has it mounted.

use crust_proto::csi::v1::NodeGetVolumeStatsRequest;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;

use super::{Context, OperationError, Publication, Telling};
use crate::csi::Lacks;
use crate::volumes::actual::Mounter;
use crate::volumes::stats::Stats;

/// `NodeGetVolumeStats`; `None` where the driver tells none.
pub(crate) async fn stats(
    context: &Context,
    publication: &Publication,
    runtime: Option<&Telling>,
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
        return Err(Lacks::deferral(&id.driver).into());
    }
    let supported = match runtime {
        Some(runtime) => runtime.tells_stats().await?,
        None => false,
    };
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.handle.clone(),
        volume_path: context.layout.target(pod, directory).display().to_string(),
        staging_target_path: context.layout.staging(id).display().to_string(),
        defer_fs_ops,
        runtime_supported_stats: supported,
    };
    let answer = driver.call(request).await?;
    match runtime {
        Some(runtime) if !answer.source.is_empty() => {
            Ok(Some(runtime.stats(&answer.source).await?))
        }
        _ => Ok(Some(answer.into())),
    }
}

//! The driver's controller service: creates, expands and deletes volumes.

use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest,
};
use tonic::Code;

use super::{Context, OperationError, secret};
use crate::claims::{ControllerExpand, CreateVolume, DeleteVolume};
use crate::csi::{ControllerCapabilities, Driver, DriverCapabilities};
use crate::objects::Objects;

/// Returns a driver's capabilities. A driver without a controller service has no controller capabilities.
pub(crate) async fn driver_capabilities(
    driver: &Driver,
) -> Result<DriverCapabilities, OperationError> {
    let controller = match driver.controller_capabilities().await {
        Err(error) if error.code() == Code::Unimplemented => ControllerCapabilities::default(),
        controller => controller?,
    };
    Ok(DriverCapabilities {
        controller,
        node: driver.node_capabilities().await?,
    })
}

pub(crate) async fn create_volume(
    context: &Context,
    objects: &Objects,
    create: &CreateVolume,
) -> Result<CreateVolumeResponse, OperationError> {
    let request = CreateVolumeRequest {
        secrets: secret(objects, create.secret.as_ref())?,
        ..create.request.clone()
    };
    Ok(context.driver_by(&create.driver)?.call(request).await?)
}

pub(crate) async fn delete_volume(
    context: &Context,
    objects: &Objects,
    delete: &DeleteVolume,
) -> Result<(), OperationError> {
    let request = DeleteVolumeRequest {
        secrets: secret(objects, delete.secret.as_ref())?,
        ..delete.request.clone()
    };
    context.driver_by(&delete.driver)?.call(request).await?;
    Ok(())
}

/// Calls `ControllerExpandVolume`.
pub(crate) async fn controller_expand(
    context: &Context,
    objects: &Objects,
    expand: &ControllerExpand,
) -> Result<ControllerExpandVolumeResponse, OperationError> {
    let request = ControllerExpandVolumeRequest {
        secrets: secret(objects, expand.secret.as_ref())?,
        ..expand.request.clone()
    };
    Ok(context.driver_by(&expand.driver)?.call(request).await?)
}

//! A driver's controller service: makes, grows and deletes volumes.

use crust_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest,
};
use tonic::Code;

use super::{Context, OperationError, secret};
use crate::claims::{Create, Delete, Grow};
use crate::csi::{Abilities, ControllerCapabilities, Driver};
use crate::objects::Objects;

/// Asks a driver for its capabilities. Volumes of a driver without a controller service are made by others.
pub(crate) async fn abilities(driver: &Driver) -> Result<Abilities, OperationError> {
    let controller = match driver.controller_capabilities().await {
        Err(error) if error.code() == Code::Unimplemented => ControllerCapabilities::default(),
        controller => controller?,
    };
    Ok(Abilities {
        controller,
        node: driver.node_capabilities().await?,
    })
}

/// `CreateVolume`
pub(crate) async fn create(
    context: &Context,
    objects: &Objects,
    create: &Create,
) -> Result<CreateVolumeResponse, OperationError> {
    let request = CreateVolumeRequest {
        secrets: secret(objects, create.secret.as_ref())?,
        ..create.request.clone()
    };
    Ok(context.driver_by(&create.driver)?.call(request).await?)
}

/// `DeleteVolume`
pub(crate) async fn delete(
    context: &Context,
    objects: &Objects,
    delete: &Delete,
) -> Result<(), OperationError> {
    let request = DeleteVolumeRequest {
        secrets: secret(objects, delete.secret.as_ref())?,
        ..delete.request.clone()
    };
    context.driver_by(&delete.driver)?.call(request).await?;
    Ok(())
}

/// `ControllerExpandVolume`
pub(crate) async fn grow(
    context: &Context,
    objects: &Objects,
    grow: &Grow,
) -> Result<ControllerExpandVolumeResponse, OperationError> {
    let request = ControllerExpandVolumeRequest {
        secrets: secret(objects, grow.secret.as_ref())?,
        ..grow.request.clone()
    };
    Ok(context.driver_by(&grow.driver)?.call(request).await?)
}

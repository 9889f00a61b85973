//! The calls of the controller service. Each volume that is created is a directory below the share of its
//! `StorageClass`. Nothing is recorded: the volume's id says where it is, so any node can delete it.

use crust_proto::csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    VolumeCapability,
};

use super::directory::{self, DIRECTORY_TIMEOUT, DirectoryError};
use super::location::{ProvisionedVolume, ShareParameters};
use super::node::check_file_system;
use super::share_calls::NoResult;
use super::{Capability, NfsDriver};
use crate::capacity_range::SizeRange;
use crate::refusal::Refusal;
use crate::requests::{
    check_name, check_present, check_unsupported_fields, check_validation_request, to_signed,
    validation_response,
};

impl NfsDriver {
    /// Handles `CreateVolume`. The requested size is reported and not enforced.
    pub(super) fn create(
        &self,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Refusal> {
        check_name(&request.name)?;
        self.check_capabilities(&request.volume_capabilities)?;
        check_unsupported_fields(request)?;
        let size = SizeRange::from_request(request.capacity_range.as_ref())?.min;
        let parameters = ShareParameters::from_storage_class(&request.parameters)?;
        let volume = parameters.new_volume(&request.name, &request.parameters)?;
        let id = volume.id();
        self.change_directory(&volume, "creating a directory in", directory::create)?;
        tracing::info!("volume {id}: created for {:?}", request.name);
        let mut context = volume.context();
        context.extend(parameters.common.context());
        Ok(CreateVolumeResponse {
            volume: Some(Volume {
                capacity_bytes: to_signed(size),
                volume_id: id,
                volume_context: context,
                content_source: None,
                accessible_topology: Vec::new(),
            }),
        })
    }

    /// Handles `DeleteVolume`. Only directories that the driver created are deleted, as the form of the id says.
    pub(super) fn delete(
        &self,
        request: &DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        if let Some(record) = self.record(id)?
            && let Some((target, _)) = self.existing_publications(&record)?.first()
        {
            let message =
                format!("it is published at {target}; hint: call NodeUnpublishVolume first");
            return Err(Refusal::state(id, message));
        }
        let volume = match ProvisionedVolume::parse(id) {
            Ok(volume) => volume,
            Err(error) => {
                tracing::warn!(
                    "volume {id}: nothing is deleted, because this driver did not create it: {error}"
                );
                return Ok(DeleteVolumeResponse {});
            }
        };
        self.change_directory(&volume, "deleting a directory in", directory::remove)?;
        tracing::info!("volume {id}: deleted");
        Ok(DeleteVolumeResponse {})
    }

    /// Creates or deletes the directory of a volume. Waits for the server for at most [`DIRECTORY_TIMEOUT`].
    fn change_directory(
        &self,
        volume: &ProvisionedVolume,
        work: &'static str,
        change: fn(&ProvisionedVolume) -> Result<(), DirectoryError>,
    ) -> Result<(), Refusal> {
        let id = volume.id();
        let changed = volume.clone();
        let call = move || change(&changed);
        let calls = &self.calls.directories;
        let refusal =
            |reason: NoResult| reason.into_refusal(&id, work, &volume.share, DIRECTORY_TIMEOUT);
        match calls.run(id.clone(), DIRECTORY_TIMEOUT, call) {
            Err(reason) => Err(refusal(reason)),
            Ok(Err(DirectoryError::Deadline)) => Err(refusal(NoResult::TimedOut)),
            Ok(done) => done.map_err(Refusal::node(&id)),
        }
    }

    /// Handles `ValidateVolumeCapabilities`. Doesn't contact the server.
    pub(super) fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Refusal> {
        check_validation_request(&request)?;
        let checked = self
            .check_capabilities(&request.volume_capabilities)
            .and_then(|()| {
                if !request.volume_context.is_empty() {
                    let context = ShareParameters::from_volume_context(&request.volume_context)?;
                    context.mounted_share()?;
                }
                Ok(())
            });
        Ok(validation_response(request, checked))
    }

    fn check_capabilities(&self, capabilities: &[VolumeCapability]) -> Result<(), Refusal> {
        let usages = Capability::all_from_request(capabilities, &self.context.features)?;
        let mut usages = usages.iter();
        usages.try_for_each(|usage| check_file_system("volume_capabilities", usage))
    }
}

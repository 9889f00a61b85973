//! The calls of the controller service: volumes are created, expanded, listed and deleted.

use std::collections::HashMap;

use crust_proto::csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerExpandVolumeResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume,
    list_volumes_response,
};

use super::driver::check_of_claim;
use super::record::{Lifecycle, Record};
use super::volume_size::min_size;
use super::{BlockDriver, Capability};
use crate::capability::Parameters;
use crate::capacity_range::SizeRange;
use crate::features::Feature;
use crate::inline_volume::is_inline_id;
use crate::refusal::Refusal;
use crate::requests::{
    check_name, check_present, check_unsupported_fields, check_validation_request, to_signed,
    validation_response,
};
use crate::store::{id_of, is_id};

/// The topology key, a label whose value is the node's name.
pub(crate) const TOPOLOGY_KEY: &str = "topology.crust.dev/node";

impl BlockDriver {
    /// Handles `CreateVolume`.
    pub(crate) fn create(
        &self,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Refusal> {
        check_name(&request.name)?;
        let usages =
            Capability::all_from_request(&request.volume_capabilities, &self.context.features)?;
        let parameters = Parameters::from_storage_class(&request.parameters)?;
        check_unsupported_fields(request)?;
        let range = SizeRange::from_request(request.capacity_range.as_ref())?;
        self.check_topology(request)?;
        let id = id_of(&request.name);
        match self.store.load(&id)? {
            Some(record) if record.lifecycle == Lifecycle::Ready => {
                let record = self.with_actual_capacity(&id, record);
                check_same_request(&id, &record, &request.name, range, &parameters)?;
                check_compatible(&id, &record, &usages)?;
                self.check_not_truncated(&id, &record)?;
                return Ok(self.created(&id, &record));
            }
            // A creation or deletion that was interrupted. The volume has no data, and is created anew.
            Some(_) => self.remove_volume(&id)?,
            None => self.check_no_image(&id)?,
        }
        let size = range.new_size(&usages)?;
        let record = Record::new(&request.name, size, parameters);
        let record = self.create_volume_files(&id, record)?;
        tracing::info!("volume {id}: created for {:?}, {size} bytes", request.name);
        Ok(self.created(&id, &record))
    }

    /// Handles `DeleteVolume`. A volume that is staged but not used is deleted, too. A kubelet that was killed between
    /// `NodeUnpublishVolume` and `NodeUnstageVolume` may have forgotten it, and the driver can see that it is unused
    /// because volumes exist on one node only.
    pub(crate) fn delete(
        &self,
        request: &DeleteVolumeRequest,
    ) -> Result<DeleteVolumeResponse, Refusal> {
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let Some(record) = self.store.load(id)? else {
            self.check_no_image(id)?;
            return Ok(DeleteVolumeResponse {});
        };
        check_of_claim(id)?;
        self.check_unpublished(id, &record)?;
        if self.loop_device(id)?.is_some() {
            self.detach_unused(id)?;
            if let Some(path) = record.staged.keys().next() {
                tracing::warn!(
                    "volume {id}: still staged at {path}, but not in use; detached its loop device"
                );
            }
        }
        let name = record.name.clone();
        self.delete_volume_files(id, record)?;
        tracing::info!("volume {id}: deleted; it was created for {name:?}");
        Ok(DeleteVolumeResponse {})
    }

    /// Handles `ValidateVolumeCapabilities`.
    pub(crate) fn validate(
        &self,
        request: ValidateVolumeCapabilitiesRequest,
    ) -> Result<ValidateVolumeCapabilitiesResponse, Refusal> {
        check_validation_request(&request)?;
        let record = self.record_of_claim(&request.volume_id)?;
        let features = &self.context.features;
        let checked = Capability::all_from_request(&request.volume_capabilities, features)
            .map_err(Refusal::from)
            .and_then(|usages| {
                let context = Parameters::from_volume_context(&request.volume_context)?;
                if !request.volume_context.is_empty() && context != record.parameters {
                    return Err(Refusal::field(
                        "volume_context",
                        "differs from the volume_context of the volume",
                    ));
                }
                if !request.parameters.is_empty()
                    && Parameters::from_storage_class(&request.parameters)? != record.parameters
                {
                    return Err(Refusal::field(
                        "parameters",
                        "differ from the parameters of the volume",
                    ));
                }
                check_compatible(&request.volume_id, &record, &usages)
            });
        Ok(validation_response(request, checked))
    }

    /// Handles `ListVolumes`. Inline volumes are not listed, because `CreateVolume` didn't create them. A page begins
    /// with the volume that the token names, or with the next one if that volume has been deleted.
    pub(crate) fn list(
        &self,
        request: &ListVolumesRequest,
    ) -> Result<ListVolumesResponse, Refusal> {
        let token = request.starting_token.as_str();
        let most = page_size(request.max_entries, token)?;
        let mut entries = Vec::new();
        let mut next_token = String::new();
        let volumes = self.store.all()?.into_iter();
        for (id, record) in volumes.skip_while(|(id, _)| id.as_str() < token) {
            // A volume that is being created or deleted is not listed.
            let is_listed = |it: &Record| it.lifecycle == Lifecycle::Ready && !is_inline_id(&id);
            let Some(record) = record.filter(is_listed) else {
                continue;
            };
            if most != 0 && entries.len() == most {
                next_token = id;
                break;
            }
            let volume = Some(self.volume(&id, &self.with_actual_capacity(&id, record)));
            entries.push(list_volumes_response::Entry { volume });
        }
        Ok(ListVolumesResponse {
            entries,
            next_token,
        })
    }

    /// Handles `ControllerGetVolumeHealth`. The controller only inspects the volume's image.
    pub(crate) fn get_volume_health(
        &self,
        request: &ControllerGetVolumeHealthRequest,
    ) -> Result<ControllerGetVolumeHealthResponse, Refusal> {
        self.context
            .check_feature(Feature::GetVolumeHealth, "GET_VOLUME_HEALTH")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let record = self.record_of_claim(id)?;
        let health = self.image_health(id, &record)?;
        if !health.is_healthy() {
            // A volume that is being deleted loses its image first.
            self.record(id)?;
        }
        Ok(ControllerGetVolumeHealthResponse {
            volume_health: Some(health.into_volume_health(id)),
        })
    }

    /// Handles `ControllerListVolumeHealth`. Lists the volumes with a problem, in pages like those of [`Self::list`].
    pub(crate) fn list_health(
        &self,
        request: &ControllerListVolumeHealthRequest,
    ) -> Result<ControllerListVolumeHealthResponse, Refusal> {
        self.context
            .check_feature(Feature::GetVolumeHealth, "LIST_VOLUME_HEALTH")?;
        let token = request.starting_token.as_str();
        let most = page_size(request.max_entries, token)?;
        let mut response = ControllerListVolumeHealthResponse::default();
        let volumes = self.store.all()?.into_iter();
        for (id, record) in volumes.skip_while(|(id, _)| id.as_str() < token) {
            let is_listed = |it: &Record| it.lifecycle == Lifecycle::Ready && !is_inline_id(&id);
            let Some(record) = record.filter(is_listed) else {
                continue;
            };
            let health = self.image_health(&id, &record)?;
            // A volume that is being deleted loses its image first.
            if health.is_healthy() || matches!(self.find_record(&id), Ok(None)) {
                continue;
            }
            if most != 0 && response.entries.len() == most {
                response.next_token = id;
                break;
            }
            response.entries.push(health.into_volume_health(&id));
        }
        Ok(response)
    }

    /// Handles `GetCapacity`.
    pub(crate) fn capacity(
        &self,
        request: &GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Refusal> {
        let is_surely_published =
            |topology: &Topology| matches_segments(&topology.segments, &self.topology().segments);
        let usable = request
            .accessible_topology
            .as_ref()
            .is_none_or(is_surely_published)
            && Parameters::from_storage_class(&request.parameters).is_ok();
        let usages = if request.volume_capabilities.is_empty() {
            Ok(Vec::new())
        } else {
            Capability::all_from_request(&request.volume_capabilities, &self.context.features)
        };
        let (Ok(usages), true) = (usages, usable) else {
            return Ok(GetCapacityResponse::default());
        };
        let available = to_signed(self.available()?);
        Ok(GetCapacityResponse {
            available_capacity: available,
            maximum_volume_size: Some(available),
            minimum_volume_size: Some(to_signed(min_size(&usages))),
        })
    }

    /// Handles `ControllerExpandVolume`.
    pub(crate) fn grow(
        &self,
        request: &ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse, Refusal> {
        self.context
            .check_feature(Feature::ExpandVolume, "EXPAND_VOLUME")?;
        let id = request.volume_id.as_str();
        check_present("volume_id", id)?;
        let range = request.capacity_range.as_ref();
        let given = |range: &&CapacityRange| range.required_bytes != 0 || range.limit_bytes != 0;
        let range = range.filter(given);
        let range = range.ok_or_else(|| Refusal::field("capacity_range", "is required"))?;
        let range = SizeRange::from_request(Some(range))?;
        let mut record = self.record_of_claim(id)?;
        self.check_not_truncated(id, &record)?;
        let size = range.expanded_size(record.capacity)?;
        if size > record.capacity {
            let more = size - record.capacity;
            record.capacity = size;
            // The record is written last. An image that is smaller than its record says was truncated.
            self.reserve(id, more, || {
                self.images.grow(id, size)?;
                Ok(self.store.save(id, &record)?)
            })?;
            tracing::info!("volume {id}: expanded to {size} bytes");
        }
        Ok(ControllerExpandVolumeResponse {
            capacity_bytes: to_signed(size),
            node_expansion_required: true,
        })
    }

    fn check_topology(&self, request: &CreateVolumeRequest) -> Result<(), Refusal> {
        let required = request.accessibility_requirements.as_ref();
        let requisite = required.map_or(&[][..], |it| &it.requisite);
        let here = self.topology();
        if requisite.is_empty()
            || requisite
                .iter()
                .any(|topology| matches_segments(&topology.segments, &here.segments))
        {
            return Ok(());
        }
        Err(Refusal::OtherNode(self.context.settings.node_id()))
    }

    /// Returns the topology of all volumes, which is this node.
    pub(crate) fn topology(&self) -> Topology {
        let segment = (TOPOLOGY_KEY.to_owned(), self.context.settings.node_id());
        Topology {
            segments: HashMap::from([segment]),
        }
    }

    fn created(&self, id: &str, record: &Record) -> CreateVolumeResponse {
        let volume = Some(self.volume(id, record));
        CreateVolumeResponse { volume }
    }

    fn volume(&self, id: &str, record: &Record) -> Volume {
        Volume {
            capacity_bytes: to_signed(record.capacity),
            volume_id: id.to_owned(),
            volume_context: record.parameters.context(),
            content_source: None,
            accessible_topology: vec![self.topology()],
        }
    }
}

/// Returns the maximum number of entries of a page. 0 is no limit. Fails if the token is invalid.
fn page_size(max_entries: i32, token: &str) -> Result<usize, Refusal> {
    if !token.is_empty() && !is_id(token) {
        return Err(Refusal::InvalidToken(token.to_owned()));
    }
    usize::try_from(max_entries).map_err(|_| Refusal::field("max_entries", "is negative"))
}

/// Returns whether a topology includes `segments`. Keys of other drivers are ignored.
fn matches_segments(
    topology: &HashMap<String, String>,
    segments: &HashMap<String, String>,
) -> bool {
    segments
        .iter()
        .all(|(key, value)| topology.get(key).is_none_or(|it| it == value))
}

/// Checks that an existing volume is the same as a request would create.
fn check_same_request(
    id: &str,
    record: &Record,
    name: &str,
    range: SizeRange,
    parameters: &Parameters,
) -> Result<(), Refusal> {
    if !range.contains(record.capacity) {
        let message = format!(
            "{name:?} exists with {} bytes, which is outside of the requested capacity_range",
            record.capacity
        );
        return Err(Refusal::exists(id, message));
    }
    if record.parameters != *parameters {
        return Err(Refusal::exists(
            id,
            format!("{name:?} exists with other parameters"),
        ));
    }
    Ok(())
}

/// Checks that an existing volume can be used with these capabilities.
fn check_compatible(id: &str, record: &Record, usages: &[Capability]) -> Result<(), Refusal> {
    let needed = min_size(usages);
    if record.capacity < needed {
        let message = format!(
            "{:?} exists with {} bytes, and the requested capabilities need {needed}",
            record.name, record.capacity
        );
        return Err(Refusal::exists(id, message));
    }
    let Some(existing) = record.file_system else {
        return Ok(());
    };
    let mut requested = usages.iter().filter_map(|usage| usage.mount.as_ref());
    match requested.find(|mount| !mount.fstype.mounts(existing.name())) {
        None => Ok(()),
        Some(mount) => {
            let message = format!(
                "{:?} exists and holds {existing}, but {} is requested",
                record.name, mount.fstype
            );
            Err(Refusal::exists(id, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topology_without_the_drivers_key_matches() {
        let segments = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let here = segments(&[(TOPOLOGY_KEY, "here")]);
        assert!(matches_segments(
            &segments(&[(TOPOLOGY_KEY, "here"), ("zone", "z")]),
            &here
        ));
        assert!(matches_segments(&segments(&[("zone", "z")]), &here));
        assert!(!matches_segments(
            &segments(&[(TOPOLOGY_KEY, "there")]),
            &here
        ));
    }
}

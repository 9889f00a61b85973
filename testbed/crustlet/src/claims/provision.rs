//! Creates volumes for claims, as external-provisioner does: builds the request to the driver, and the
//! `PersistentVolume` from the driver's response.

use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use crust_proto::csi::v1::{
    CapacityRange, CreateVolumeRequest, CreateVolumeResponse, VolumeCapability,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Map, Value, json};

use super::binding::claim_reference;
use super::parameters::{Parameters, TemplateValues};
use super::request::requested;
use super::{Notice, RecordUpdate};
use crate::csi::{ControllerCapabilities, access_mode};
use crate::events::EventType;
use crate::objects::manifest::is_name;
use crate::objects::quantity::{Bytes, QuantityError};
use crate::objects::{Name, StorageClass};

/// The annotation of provisioned volumes. Its value is the driver's name. Volumes without it are never deleted.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The annotations of provisioned volumes that name the Secret for `DeleteVolume`. The storage class, which names it
/// too, may be gone by then.
pub(super) const DELETION_SECRET: [&str; 2] = [
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
    "volume.kubernetes.io/provisioner-deletion-secret-name",
];

/// The reason why no volume can be created for a claim.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum ProvisionError {
    #[error(
        "volumeMode Block: crustlet doesn't create raw block volumes; hint: use volumeMode: Filesystem"
    )]
    Block,
    /// The claim requests a copy of a snapshot or of another claim.
    #[error("dataSource: crustlet creates only empty volumes")]
    DataSource,
    /// The claim's UID can't be part of a volume's name.
    #[error("metadata.uid: {0:?} is not a valid UID")]
    InvalidUid(String),
    /// The requested size can't be parsed.
    #[error("resources.requests.storage: {0}")]
    Amount(#[from] QuantityError),
    /// A parameter of the storage class is invalid.
    #[error("parameter {0}")]
    Parameter(String),
    /// The driver's response has no volume ID.
    #[error("driver {0} answered CreateVolume without a volume_id")]
    NoVolumeId(String),
    /// The driver created a volume that is smaller than requested.
    #[error(
        "driver {driver} answered CreateVolume with {actual_bytes} bytes, but {requested_bytes} were requested; the driver keeps the volume as {handle}; hint: delete it in the driver's storage"
    )]
    TooSmall {
        driver: String,
        /// The size in the request, `capacity_range.required_bytes`.
        requested_bytes: i64,
        /// The size in the response, `capacity_bytes`.
        actual_bytes: i64,
        /// The `volume_id` in the response.
        handle: String,
    },
    /// The driver refused the call, or couldn't be called.
    #[error("{0}")]
    Call(String),
}

/// `CreateVolume` for a claim.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CreateVolume {
    pub(crate) claim: Name,
    pub(crate) driver: String,
    /// The request without the secrets.
    pub(crate) request: CreateVolumeRequest,
    /// The Secret whose data is sent as secrets.
    pub(crate) secret: Option<Name>,
    uid: String,
    class: Name,
    reclaim_policy: String,
    access_modes: Vec<String>,
    mount_options: Vec<String>,
    parameters: Parameters,
}

impl CreateVolume {
    /// Returns the call for a claim, with the parameters of its storage class.
    pub(super) fn new(
        (name, claim): (&Name, &PersistentVolumeClaim),
        class: &StorageClass,
        (driver, capabilities): (&str, &ControllerCapabilities),
    ) -> Result<Self, ProvisionError> {
        let spec = claim.spec.as_ref();
        if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
            return Err(ProvisionError::Block);
        }
        if spec.is_some_and(|spec| spec.data_source.is_some() || spec.data_source_ref.is_some()) {
            return Err(ProvisionError::DataSource);
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        // The name contains the UID, so a repeated call returns the same volume, and a later claim with the same name
        // gets another volume.
        let volume = format!("pvc-{uid}");
        if uid.is_empty() || !is_name(&volume) {
            return Err(ProvisionError::InvalidUid(uid));
        }
        let template_values = TemplateValues {
            volume: &volume,
            claim: name,
            object: claim,
        };
        let class_parameters = class.object.parameters.clone().unwrap_or_default();
        let parameters = Parameters::parse(&class_parameters, template_values)
            .map_err(ProvisionError::Parameter)?;
        let access_modes = spec
            .and_then(|spec| spec.access_modes.clone())
            .unwrap_or_default();
        let mount_options = class.object.mount_options.clone().unwrap_or_default();
        let supports_single_node_modes = capabilities.has(Rpc::SingleNodeMultiWriter);
        // One capability for each access mode, as in external-provisioner: the driver has to support all of them.
        let capability = |access: &[String]| VolumeCapability {
            access_mode: Some(AccessMode {
                mode: access_mode(access, supports_single_node_modes).into(),
            }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: parameters.fs_type.clone(),
                mount_flags: mount_options.clone(),
                ..MountVolume::default()
            })),
        };
        let capabilities = match access_modes.as_slice() {
            [] => vec![capability(&[])],
            modes => modes.chunks(1).map(capability).collect(),
        };
        let request = CreateVolumeRequest {
            name: volume,
            capacity_range: Some(CapacityRange {
                required_bytes: requested(claim)?,
                limit_bytes: 0,
            }),
            volume_capabilities: capabilities,
            parameters: parameters.for_driver.clone().into_iter().collect(),
            ..CreateVolumeRequest::default()
        };
        Ok(Self {
            claim: name.clone(),
            driver: driver.to_owned(),
            request,
            secret: parameters.provisioner.clone(),
            uid,
            class: Name::new(
                "",
                class.object.metadata.name.as_deref().unwrap_or_default(),
            ),
            reclaim_policy: class
                .object
                .reclaim_policy
                .clone()
                .unwrap_or_else(|| "Delete".to_owned()),
            access_modes,
            mount_options,
            parameters,
        })
    }

    /// Returns the event to emit when the call starts.
    pub(crate) fn started(&self) -> Notice {
        let message = format!("provisioning volume for claim \"{}\"", self.claim);
        Notice::about_claim(EventType::Normal, &self.claim, "Provisioning", message)
    }

    /// Returns the record of a volume that was created. It has to be written even if the claim is gone by then: a
    /// volume without a record would never be deleted.
    pub(crate) fn volume_record(
        &self,
        response: CreateVolumeResponse,
    ) -> Result<RecordUpdate, ProvisionError> {
        let volume = response.volume.unwrap_or_default();
        if volume.volume_id.is_empty() {
            return Err(ProvisionError::NoVolumeId(self.driver.clone()));
        }
        let range = self.request.capacity_range.unwrap_or_default();
        let requested_bytes = range.required_bytes;
        // 0 means that the driver doesn't report the size.
        let actual_bytes = match volume.capacity_bytes {
            0 => requested_bytes,
            actual_bytes => actual_bytes,
        };
        if actual_bytes < requested_bytes {
            return Err(ProvisionError::TooSmall {
                driver: self.driver.clone(),
                requested_bytes,
                actual_bytes,
                handle: volume.volume_id,
            });
        }
        let name = self.request.name.as_str();
        let mut annotations = Map::new();
        annotations.insert(PROVISIONED_BY.to_owned(), json!(self.driver));
        if let Some(secret) = &self.secret {
            for (key, value) in DELETION_SECRET
                .into_iter()
                .zip([&secret.namespace, &secret.name])
            {
                annotations.insert(key.to_owned(), json!(value));
            }
        }
        let mut context: Vec<(String, String)> = volume.volume_context.into_iter().collect();
        context.sort();
        let mut source = json!({"driver": self.driver, "volumeHandle": volume.volume_id});
        if !self.parameters.fs_type.is_empty() {
            source["fsType"] = json!(self.parameters.fs_type);
        }
        if !context.is_empty() {
            let context = context.into_iter().map(|(key, value)| (key, json!(value)));
            source["volumeAttributes"] = Value::Object(context.collect());
        }
        let Parameters {
            controller_publish,
            controller_expand,
            node_stage,
            node_publish,
            node_expand,
            ..
        } = &self.parameters;
        for (key, secret) in [
            ("controllerPublishSecretRef", controller_publish),
            ("controllerExpandSecretRef", controller_expand),
            ("nodeStageSecretRef", node_stage),
            ("nodePublishSecretRef", node_publish),
            ("nodeExpandSecretRef", node_expand),
        ] {
            if let Some(Name { namespace, name }) = secret {
                source[key] = json!({"name": name, "namespace": namespace});
            }
        }
        let mut spec = json!({
            "accessModes": self.access_modes,
            "capacity": {"storage": Bytes(actual_bytes).to_string()},
            "claimRef": claim_reference(&self.claim, &self.uid),
            "csi": source,
            "persistentVolumeReclaimPolicy": self.reclaim_policy,
            "storageClassName": self.class.name,
            "volumeMode": "Filesystem",
        });
        if !self.mount_options.is_empty() {
            spec["mountOptions"] = json!(self.mount_options);
        }
        let document = json!({"metadata": {"annotations": annotations}, "spec": spec});
        let message = format!("Successfully provisioned volume {name}");
        let notice = Notice::about_claim(
            EventType::Normal,
            &self.claim,
            "ProvisioningSucceeded",
            message,
        );
        Ok(RecordUpdate::volume(name, document).with_notice(notice))
    }

    /// Returns the event to emit when no volume was created.
    pub(crate) fn failed(&self, reason: &ProvisionError) -> Notice {
        failure_notice(&self.claim, &self.class.name, reason)
    }
}

/// Returns the event to emit when the call can't be made.
pub(super) fn class_failure_notice(
    claim: &Name,
    class: &StorageClass,
    reason: &ProvisionError,
) -> Notice {
    let class = class.object.metadata.name.as_deref();
    failure_notice(claim, class.unwrap_or_default(), reason)
}

fn failure_notice(claim: &Name, class: &str, reason: &ProvisionError) -> Notice {
    let message = format!("failed to provision volume with StorageClass \"{class}\": {reason}");
    Notice::about_claim(EventType::Warning, claim, "ProvisioningFailed", message)
}

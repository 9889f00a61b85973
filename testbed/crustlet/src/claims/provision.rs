//! Makes a volume for a claim: the request to the driver, and the `PersistentVolume` of its answer, as
//! external-provisioner writes them.

use crust_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use crust_proto::csi::v1::{
    CapacityRange, CreateVolumeRequest, CreateVolumeResponse, VolumeCapability,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Map, Value, json};

use super::binding::reference;
use super::parameters::{Parameters, Tokens};
use super::request::requested;
use super::{Notice, Write};
use crate::csi::{ControllerCapabilities, access_mode};
use crate::events::EventType;
use crate::objects::manifest::is_name;
use crate::objects::quantity::{Bytes, QuantityError};
use crate::objects::{Name, StorageClass};

/// The annotation of volumes that were made here, with the driver. Others aren't deleted.
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On them: the Secret for `DeleteVolume`, since the class may be gone by then.
pub(super) const DELETION_SECRET: [&str; 2] = [
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
    "volume.kubernetes.io/provisioner-deletion-secret-name",
];

/// A volume can't be made for a claim.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Unprovisionable {
    /// A raw device.
    #[error("volumeMode Block: crustlet makes no raw block volumes; hint: volumeMode: Filesystem")]
    Block,
    /// The claim asks for a copy of a snapshot or of another claim.
    #[error("dataSource: crustlet makes empty volumes alone")]
    Source,
    /// It becomes part of names.
    #[error("metadata.uid: {0:?} is none")]
    Uid(String),
    /// The amount can't be parsed.
    #[error("resources.requests.storage: {0}")]
    Amount(#[from] QuantityError),
    /// A parameter of the class is wrong.
    #[error("parameter {0}")]
    Parameter(String),
    /// The driver says that it has made one, and not which.
    #[error("driver {0} answers CreateVolume without a volume_id")]
    Nameless(String),
    /// The driver has made one that isn't what it was asked for.
    #[error(
        "driver {driver} answers CreateVolume with {given} bytes, where {asked} were asked for; hint: the volume stays with the driver, as {handle}"
    )]
    Small {
        driver: String,
        /// `capacity_range.required_bytes`
        asked: i64,
        /// `capacity_bytes`
        given: i64,
        /// `volume_id`
        handle: String,
    },
    /// The driver refuses, or can't be asked.
    #[error("{0}")]
    Call(String),
}

/// A volume that is to be made.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Create {
    /// For which claim.
    pub(crate) claim: Name,
    pub(crate) driver: String,
    /// The request, without the secrets.
    pub(crate) request: CreateVolumeRequest,
    /// The Secret with the secrets.
    pub(crate) secret: Option<Name>,
    uid: String,
    class: Name,
    reclaim_policy: String,
    access_modes: Vec<String>,
    mount_options: Vec<String>,
    parameters: Parameters,
}

impl Create {
    /// For a claim, of a class, by a driver.
    pub(super) fn of(
        (name, claim): (&Name, &PersistentVolumeClaim),
        class: &StorageClass,
        (driver, capabilities): (&str, &ControllerCapabilities),
    ) -> Result<Self, Unprovisionable> {
        let spec = claim.spec.as_ref();
        if spec.and_then(|it| it.volume_mode.as_deref()) == Some("Block") {
            return Err(Unprovisionable::Block);
        }
        if spec.is_some_and(|it| it.data_source.is_some() || it.data_source_ref.is_some()) {
            return Err(Unprovisionable::Source);
        }
        let uid = claim.metadata.uid.clone().unwrap_or_default();
        // So that the same call is the same volume, and a claim by the name of one that was gets another.
        let volume = format!("pvc-{uid}");
        if uid.is_empty() || !is_name(&volume) {
            return Err(Unprovisionable::Uid(uid));
        }
        let tokens = Tokens {
            volume: &volume,
            claim: name,
            object: claim,
        };
        let written = class.object.parameters.clone().unwrap_or_default();
        let parameters = Parameters::of(&written, tokens).map_err(Unprovisionable::Parameter)?;
        let access_modes = spec
            .and_then(|it| it.access_modes.clone())
            .unwrap_or_default();
        let mount_options = class.object.mount_options.clone().unwrap_or_default();
        let knows = capabilities.has(Rpc::SingleNodeMultiWriter);
        // One for each, as external-provisioner has it: the driver has to be able to do all of them.
        let capability = |access: &[String]| VolumeCapability {
            access_mode: Some(AccessMode {
                mode: access_mode(access, knows).into(),
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
            parameters: parameters.own.clone().into_iter().collect(),
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

    /// To be told as the driver is asked.
    pub(crate) fn begun(&self) -> Notice {
        let message = format!("provisioning volume for claim \"{}\"", self.claim);
        Notice::of_claim(EventType::Normal, &self.claim, "Provisioning", message)
    }

    /// Returns the record of a volume that was made. It has to be written even if the claim is gone by then: a volume
    /// without a record would never be deleted.
    pub(crate) fn made(&self, answer: CreateVolumeResponse) -> Result<Write, Unprovisionable> {
        let volume = answer.volume.unwrap_or_default();
        if volume.volume_id.is_empty() {
            return Err(Unprovisionable::Nameless(self.driver.clone()));
        }
        let range = self.request.capacity_range.unwrap_or_default();
        let asked = range.required_bytes;
        // 0: it doesn't say.
        let given = match volume.capacity_bytes {
            0 => asked,
            given => given,
        };
        if given < asked {
            return Err(Unprovisionable::Small {
                driver: self.driver.clone(),
                asked,
                given,
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
            "capacity": {"storage": Bytes(given).to_string()},
            "claimRef": reference(&self.claim, &self.uid),
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
        let notice = Notice::of_claim(
            EventType::Normal,
            &self.claim,
            "ProvisioningSucceeded",
            message,
        );
        Ok(Write::volume(name, document).telling(notice))
    }

    /// To be told where none was made.
    pub(crate) fn failed(&self, why: &Unprovisionable) -> Notice {
        refusal(&self.claim, &self.class.name, why)
    }
}

/// The same before anybody was asked.
pub(super) fn failed(claim: &Name, class: &StorageClass, why: &Unprovisionable) -> Notice {
    let class = class.object.metadata.name.as_deref();
    refusal(claim, class.unwrap_or_default(), why)
}

fn refusal(claim: &Name, class: &str, why: &Unprovisionable) -> Notice {
    let message = format!("failed to provision volume with StorageClass \"{class}\": {why}");
    Notice::of_claim(EventType::Warning, claim, "ProvisioningFailed", message)
}

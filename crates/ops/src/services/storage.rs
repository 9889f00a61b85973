//! `crust.runtime.v1alpha1.RuntimeAssistedStorageManagement` (KEP-2857's earlier draft).

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crust_blockfs::fsgroup::FsGroupChangePolicy;
use crust_blockfs::options;
use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_server::RuntimeAssistedStorageManagement;
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type;
use crust_proto::runtime::v1alpha1::runtime_capability::{Rpc, Type as Kind};
use crust_proto::runtime::v1alpha1::{
    RuntimeCapability, RuntimeExpandVolumeRequest, RuntimeExpandVolumeResponse,
    RuntimeGetCapabilitiesRequest, RuntimeGetCapabilitiesResponse,
    RuntimeGetSupportedFileSystemsRequest, RuntimeGetSupportedFileSystemsResponse,
    RuntimeGetVolumeStatsRequest, RuntimeGetVolumeStatsResponse, RuntimePublishVolumeRequest,
    RuntimePublishVolumeResponse,
};
use crust_state::files::MAX_FILE_SIZE;
use crust_state::info::VolumeType;
use crust_state::{Digest, MountInfo, TargetPath};
use serde::Deserialize;
use tonic::{Request, Response, Status};

use super::{STAGE, Shared, a_path, bytes, is_about, required, target_path};
use crate::cli::{Capabilities, CliCall};
use crate::refusal::Refusal;

/// A publish applies fsGroup: as long as a container's create may take, and a little.
const PUBLISH: Duration = Duration::from_secs(115);

/// The service.
#[derive(Debug)]
pub(crate) struct StorageService(pub(crate) Shared);

/// Nothing.
#[derive(Deserialize)]
struct Done {}

#[tonic::async_trait]
impl RuntimeAssistedStorageManagement for StorageService {
    async fn runtime_get_capabilities(
        &self,
        _: Request<RuntimeGetCapabilitiesRequest>,
    ) -> Result<Response<RuntimeGetCapabilitiesResponse>, Status> {
        let found = self
            .capabilities()
            .await
            .map_err(|it| it.into_status(None))?;
        let known = found
            .capabilities
            .iter()
            .filter_map(|name| Type::from_str_name(name));
        let capabilities = known.map(|kind| RuntimeCapability {
            r#type: Some(Kind::Rpc(Rpc {
                r#type: kind.into(),
            })),
        });
        Ok(Response::new(RuntimeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn runtime_get_supported_file_systems(
        &self,
        _: Request<RuntimeGetSupportedFileSystemsRequest>,
    ) -> Result<Response<RuntimeGetSupportedFileSystemsResponse>, Status> {
        let found = self
            .capabilities()
            .await
            .map_err(|it| it.into_status(None))?;
        let file_systems = found.file_systems;
        Ok(Response::new(RuntimeGetSupportedFileSystemsResponse {
            file_systems,
        }))
    }

    async fn runtime_publish_volume(
        &self,
        request: Request<RuntimePublishVolumeRequest>,
    ) -> Result<Response<RuntimePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let path = request.host_target_path.clone();
        let published = self.publish(request).await;
        published.map_err(|refusal| refusal.into_status(Some(&path)))?;
        Ok(Response::new(RuntimePublishVolumeResponse {}))
    }

    async fn runtime_get_volume_stats(
        &self,
        request: Request<RuntimeGetVolumeStatsRequest>,
    ) -> Result<Response<RuntimeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        let stats = async {
            let target = self
                .volume(request.sandbox_id, request.host_volume_id)
                .await?;
            self.0.stats(target).await
        };
        let stats = stats.await.map_err(|refusal| refusal.into_status(None))?;
        Ok(Response::new(answer_to_stats(stats)))
    }

    async fn runtime_expand_volume(
        &self,
        request: Request<RuntimeExpandVolumeRequest>,
    ) -> Result<Response<RuntimeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let expanded = async {
            let least = bytes("required_bytes", request.required_bytes)?;
            let target = self
                .volume(request.sandbox_id, request.host_volume_id)
                .await?;
            self.0.expand(target, least, 0).await
        };
        let capacity = expanded
            .await
            .map_err(|refusal| refusal.into_status(None))?;
        Ok(Response::new(RuntimeExpandVolumeResponse {
            capacity_bytes: capacity.capacity_bytes,
        }))
    }
}

impl StorageService {
    /// Asks the runtime for its capabilities on this host.
    async fn capabilities(&self) -> Result<Capabilities, Refusal> {
        let runtime = self.0.runtime();
        let asked = CliCall {
            program: &runtime,
            arguments: &["capabilities".into()],
            is_left_alone: false,
        };
        // As of a volume: however many ask, one is asked at a time.
        let turn = self.0.asked.lock(Digest::of(b"capabilities"));
        let turn = tokio::time::timeout(self.0.cli_timeout(), turn).await;
        let turn = turn.map_err(|_| Refusal::Hangs {
            after: self.0.cli_timeout(),
        })?;
        Ok(self.0.ask(asked, None, Some(turn)).await?)
    }

    async fn volume(&self, sandbox: String, device: String) -> Result<TargetPath, Refusal> {
        let sandbox = required("sandbox_id", sandbox)?;
        let device = PathBuf::from(a_path("host_volume_id", device)?);
        let target = self.0.node().volume_of(sandbox, device).await;
        target.inspect(is_about)
    }

    async fn publish(&self, request: RuntimePublishVolumeRequest) -> Result<(), Refusal> {
        let target = target_path("host_target_path", &request.host_target_path)?;
        let (info, arguments) = arguments(&target, request)?;
        let turn = self.0.turn(&self.0.volumes, &target, STAGE).await?;
        // The runtime's own command stages anything: whoever has this socket may not.
        let node = self.0.node();
        let _taken = node
            .admit(target.clone(), info, self.0.staging_limits())
            .await?;
        let runtime = self.0.runtime();
        let asked = CliCall {
            program: &runtime,
            arguments: &arguments,
            // Killed between its steps, it would have staged what isn't mounted.
            is_left_alone: true,
        };
        let done = self.0.ask(asked, Some(PUBLISH), Some(turn)).await;
        done.map(|Done {}| ())
            .map_err(Refusal::cli(target.volume_name()))
    }
}

/// Returns the volume that is to be published, and the arguments of the runtime's `publish` that say the same.
fn arguments(
    target: &TargetPath,
    request: RuntimePublishVolumeRequest,
) -> Result<(MountInfo, Vec<OsString>), Refusal> {
    let mut arguments = vec!["publish".into(), OsString::from(request.host_target_path)];
    // With `=`, so that no value is taken for a flag.
    let mut length = 0;
    let mut add = |field, flag: &str, value: &str| {
        if value.contains('\0') {
            return Err(Refusal::field(field, "it has a NUL byte"));
        }
        length += value.len() as u64;
        if length > MAX_FILE_SIZE {
            return Err(Refusal::field(
                field,
                format!("with it the volume's description is longer than {MAX_FILE_SIZE} bytes"),
            ));
        }
        arguments.push(format!("--{flag}={value}").into());
        Ok(())
    };
    let sandbox = required("sandbox_id", request.sandbox_id)?;
    add("sandbox_id", "sandbox", &sandbox)?;
    let device = a_path("host_volume_id", request.host_volume_id)?;
    add("host_volume_id", "device", &device)?;
    let fstype = required("file_system", request.file_system)?;
    add("file_system", "fstype", &fstype)?;
    // Before anybody sees them in the arguments of a process: none looks like a secret.
    options::parse(&request.mount_options)
        .map_err(|error| Refusal::field("mount_options", error))?;
    for option in &request.mount_options {
        add("mount_options", "option", option)?;
    }
    let policy = &request.fsgroup_policy;
    let known = if policy.is_empty() {
        FsGroupChangePolicy::default()
    } else {
        let known = policy.parse();
        known.map_err(|error| Refusal::field("fsgroup_policy", error))?
    };
    let mut group = None;
    if let Some(gid) = request.fsgroup_gid {
        let gid = u32::try_from(gid)
            .map_err(|_| Refusal::field("fsgroup_gid", format!("{gid} is negative")))?;
        group = Some(gid);
        add("fsgroup_gid", "fs-group", &gid.to_string())?;
        // Without a group a policy means nothing.
        if !policy.is_empty() {
            add("fsgroup_policy", "fs-group-change-policy", policy)?;
        }
    }
    if request.readonly {
        arguments.push("--read-only".into());
    }
    let info = MountInfo {
        volume_type: VolumeType::Block,
        device: device.into(),
        fstype,
        options: request.mount_options,
        fs_group: group,
        fs_group_change_policy: known.with_group(group),
        target_path: Some(target.clone()),
        read_only: request.readonly,
        access_mode: None,
        device_node: false,
        // The runtime looks which it is.
        disk_seq: None,
    };
    Ok((info, arguments))
}

answer_to_stats!(crust_proto::runtime::v1alpha1);

//! `crust.runtime.v1alpha1.RuntimeAssistedStorageManagement` (KEP-2857's earlier draft).

use std::ffi::OsString;
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

use super::{STAGE_TIMEOUT, ServiceState, bytes, log_volume, required, required_path, target_path};
use crate::call_error::CallError;
use crate::cli::{Capabilities, CliCall};

/// The timeout of a publish, which applies fsGroup. It is a little longer than the timeout of a container's create.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(115);

#[derive(Debug)]
pub(crate) struct StorageService(pub(crate) ServiceState);

/// The answer of a command that returns no data.
#[derive(Deserialize)]
struct EmptyAnswer {}

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
        published.map_err(|error| error.into_status(Some(&path)))?;
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
        let stats = stats.await.map_err(|error| error.into_status(None))?;
        Ok(Response::new(stats_response(stats)))
    }

    async fn runtime_expand_volume(
        &self,
        request: Request<RuntimeExpandVolumeRequest>,
    ) -> Result<Response<RuntimeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let expanded = async {
            let min_bytes = bytes("required_bytes", request.required_bytes)?;
            let target = self
                .volume(request.sandbox_id, request.host_volume_id)
                .await?;
            self.0.expand(target, min_bytes, 0).await
        };
        let capacity = expanded.await.map_err(|error| error.into_status(None))?;
        Ok(Response::new(RuntimeExpandVolumeResponse {
            capacity_bytes: capacity.capacity_bytes,
        }))
    }
}

impl StorageService {
    /// Asks the runtime for its capabilities on this host.
    async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let runtime = self.0.runtime();
        let call = CliCall {
            program: &runtime,
            arguments: &["capabilities".into()],
            runs_to_completion: false,
        };
        // Locked like a volume, so that only one process runs at a time however many calls ask.
        let volume_lock = self.0.query_locks.lock(Digest::compute(b"capabilities"));
        let volume_lock = tokio::time::timeout(self.0.cli_timeout(), volume_lock).await;
        let volume_lock = volume_lock.map_err(|_| CallError::Hangs {
            after: self.0.cli_timeout(),
        })?;
        Ok(self.0.ask(call, None, Some(volume_lock)).await?)
    }

    async fn volume(&self, sandbox: String, device: String) -> Result<TargetPath, CallError> {
        let sandbox = required("sandbox_id", sandbox)?;
        let device = required_path("host_volume_id", device)?;
        let target = self.0.node().find_volume(sandbox, device).await;
        target.inspect(log_volume)
    }

    async fn publish(&self, request: RuntimePublishVolumeRequest) -> Result<(), CallError> {
        let target = target_path("host_target_path", &request.host_target_path)?;
        let (info, arguments) = arguments(&target, request)?;
        let volume_lock = self
            .0
            .lock_volume(&self.0.change_locks, &target, STAGE_TIMEOUT)
            .await?;
        // The runtime's command stages anything, but callers of this socket are restricted.
        let node = self.0.node();
        let _reservation = node
            .check_staging(target.clone(), info, self.0.staging_limits())
            .await?;
        let runtime = self.0.runtime();
        let call = CliCall {
            program: &runtime,
            arguments: &arguments,
            // If the program were killed in between, the volume would be staged but not mounted.
            runs_to_completion: true,
        };
        let answer = self
            .0
            .ask(call, Some(PUBLISH_TIMEOUT), Some(volume_lock))
            .await;
        answer
            .map(|EmptyAnswer {}| ())
            .map_err(CallError::cli(target.volume_name()))
    }
}

/// Returns the metadata of the volume to publish, and the equivalent arguments of the runtime's `publish` command.
fn arguments(
    target: &TargetPath,
    request: RuntimePublishVolumeRequest,
) -> Result<(MountInfo, Vec<OsString>), CallError> {
    let mut arguments = vec!["publish".into(), OsString::from(request.host_target_path)];
    // Flags have the form `--flag=value`, so that a value that begins with a dash isn't parsed as a flag.
    let mut length = 0;
    let mut add = |field, flag: &str, value: &str| {
        if value.contains('\0') {
            return Err(CallError::field(field, "it has a NUL byte"));
        }
        length += value.len() as u64;
        if length > MAX_FILE_SIZE {
            return Err(CallError::field(
                field,
                format!(
                    "with this field the volume's description is longer than {MAX_FILE_SIZE} bytes"
                ),
            ));
        }
        arguments.push(format!("--{flag}={value}").into());
        Ok(())
    };
    let sandbox = required("sandbox_id", request.sandbox_id)?;
    add("sandbox_id", "sandbox", &sandbox)?;
    let device = required_path("host_volume_id", request.host_volume_id)?;
    add("host_volume_id", "device", &device)?;
    let fstype = required("file_system", request.file_system)?;
    add("file_system", "fstype", &fstype)?;
    // Rejects options that may contain a secret, because all users can see the arguments of a process.
    options::parse(&request.mount_options)
        .map_err(|error| CallError::field("mount_options", error))?;
    for option in &request.mount_options {
        add("mount_options", "option", option)?;
    }
    let policy = &request.fsgroup_policy;
    let change_policy = if policy.is_empty() {
        FsGroupChangePolicy::default()
    } else {
        let parsed = policy.parse();
        parsed.map_err(|error| CallError::field("fsgroup_policy", error))?
    };
    let mut group = None;
    if let Some(gid) = request.fsgroup_gid {
        let gid = u32::try_from(gid)
            .map_err(|_| CallError::field("fsgroup_gid", format!("{gid} is negative")))?;
        group = Some(gid);
        add("fsgroup_gid", "fs-group", &gid.to_string())?;
        // A policy has no effect without a group.
        if !policy.is_empty() {
            add("fsgroup_policy", "fs-group-change-policy", policy)?;
        }
    }
    if request.readonly {
        arguments.push("--read-only".into());
    }
    let info = MountInfo {
        volume_type: VolumeType::from_fstype(&fstype),
        device: device.into(),
        fstype,
        options: request.mount_options,
        fs_group: group,
        fs_group_change_policy: change_policy.with_group(group),
        target_path: Some(target.clone()),
        read_only: request.readonly,
        access_mode: None,
        device_node: false,
        // The runtime sets the sequence number.
        disk_seq: None,
    };
    Ok((info, arguments))
}

stats_response!(crust_proto::runtime::v1alpha1);

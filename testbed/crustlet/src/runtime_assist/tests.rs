use std::collections::{BTreeMap, HashMap};

use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_server::{
    RuntimeAssistedStorageManagement as Service, RuntimeAssistedStorageManagementServer as Server,
};
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type as Rpc;
use crust_proto::runtime::v1alpha1::{
    RuntimeCapability, RuntimeExpandVolumeResponse, RuntimeGetCapabilitiesResponse,
    RuntimeGetSupportedFileSystemsResponse, RuntimeGetVolumeStatsResponse,
    RuntimePublishVolumeResponse, VolumeUsage, runtime_capability, volume_usage,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;

use super::*;
use crate::volumes::spec::{Lifecycle, VolumeId, VolumeSpec};
use crate::volumes::stats::SpaceUsage;

fn mount(group: Option<i64>, policy: Option<&str>, has_subpath: bool) -> MountSpec {
    MountSpec {
        volume: VolumeSpec {
            id: VolumeId {
                driver: "csi.example".to_owned(),
                handle: "handle-1".to_owned(),
            },
            directory: "pv-1".to_owned(),
            lifecycle: Lifecycle::Persistent,
            fs_type: "ext4".to_owned(),
            mount_options: Vec::new(),
            attributes: BTreeMap::new(),
            access_modes: Vec::new(),
            read_only: false,
            stage_secret: None,
            publish_secret: None,
            expand_secret: None,
            claim: None,
            capacity: None,
            allows_runtime: true,
        },
        deferred: false,
        read_only: false,
        fs_group: group,
        change_policy: policy.map(str::to_owned),
        runtime: None,
        has_subpath,
    }
}

fn info(options: &[(&str, &str)]) -> FileSystemMountInfo {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    FileSystemMountInfo {
        source: "/dev/sdx".to_owned(),
        r#type: "ext4".to_owned(),
        options: options.iter().map(owned).collect::<HashMap<_, _>>(),
    }
}

#[test]
fn the_first_missing_capability_is_named() {
    let (always, mismatch) = (
        Rpc::FsGroupChangePolicyAlways,
        Rpc::FsGroupChangePolicyRootMismatch,
    );
    let cases = [
        (mount(None, Some("OnRootMismatch"), false), &[][..], None),
        (
            mount(Some(0), None, false),
            &[mismatch],
            Some("FS_GROUP_CHANGE_POLICY_ALWAYS"),
        ),
        (mount(Some(0), Some("Always"), false), &[always], None),
        (
            mount(Some(7), Some("OnRootMismatch"), false),
            &[always],
            Some("FS_GROUP_CHANGE_POLICY_ROOT_MISMATCH"),
        ),
        (mount(Some(7), None, true), &[always], Some("SUBPATH")),
        (mount(Some(7), None, true), &[always, Rpc::Subpath], None),
    ];
    for (mount, supported, missing) in cases {
        let capabilities: RuntimeCapabilities = supported.iter().copied().collect();
        assert_eq!(
            capabilities.missing_capability(&mount),
            missing,
            "{supported:?}"
        );
    }
}

#[test]
fn the_request_is_built_from_the_drivers_response() {
    let options = info(&[("noatime", ""), ("commit", "5")]);
    let target = Path::new("/pods/1/mount");
    let request = |group, policy| {
        publish_request("sandbox-1", target, &options, &mount(group, policy, false))
    };
    let expected = RuntimePublishVolumeRequest {
        sandbox_id: "sandbox-1".to_owned(),
        host_volume_id: "/dev/sdx".to_owned(),
        host_target_path: "/pods/1/mount".to_owned(),
        file_system: "ext4".to_owned(),
        mount_options: vec!["commit=5".to_owned(), "noatime".to_owned()],
        fsgroup_gid: Some(0),
        fsgroup_policy: "OnRootMismatch".to_owned(),
        readonly: false,
    };
    assert_eq!(
        request(Some(0), Some("OnRootMismatch")),
        Ok(expected.clone())
    );
    let without_group = RuntimePublishVolumeRequest {
        fsgroup_gid: None,
        fsgroup_policy: String::new(),
        ..expected
    };
    assert_eq!(request(None, Some("OnRootMismatch")), Ok(without_group));
    let large = i64::from(i32::MAX) + 1;
    assert_eq!(
        request(Some(large), None),
        Err(RuntimeError::FsGroupTooLarge(large))
    );
}

/// A runtime that supports only statistics.
struct StatsOnlyRuntime;

#[tonic::async_trait]
impl Service for StatsOnlyRuntime {
    async fn runtime_get_capabilities(
        &self,
        _: Request<RuntimeGetCapabilitiesRequest>,
    ) -> Result<Response<RuntimeGetCapabilitiesResponse>, Status> {
        let capability = |r#type| RuntimeCapability {
            r#type: Some(runtime_capability::Type::Rpc(runtime_capability::Rpc {
                r#type,
            })),
        };
        Ok(Response::new(RuntimeGetCapabilitiesResponse {
            // The second capability is from a later version.
            capabilities: vec![capability(Rpc::VolumeStats.into()), capability(99)],
        }))
    }

    async fn runtime_get_supported_file_systems(
        &self,
        _: Request<RuntimeGetSupportedFileSystemsRequest>,
    ) -> Result<Response<RuntimeGetSupportedFileSystemsResponse>, Status> {
        let file_systems = vec!["ext4".to_owned()];
        Ok(Response::new(RuntimeGetSupportedFileSystemsResponse {
            file_systems,
        }))
    }

    async fn runtime_publish_volume(
        &self,
        _: Request<RuntimePublishVolumeRequest>,
    ) -> Result<Response<RuntimePublishVolumeResponse>, Status> {
        Err(Status::failed_precondition("there is no /.crust"))
    }

    async fn runtime_get_volume_stats(
        &self,
        request: Request<RuntimeGetVolumeStatsRequest>,
    ) -> Result<Response<RuntimeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(
            (&*request.sandbox_id, &*request.host_volume_id),
            ("sandbox-1", "/dev/sdx")
        );
        Ok(Response::new(RuntimeGetVolumeStatsResponse {
            usage: vec![VolumeUsage {
                available: 1,
                total: 3,
                used: 2,
                unit: volume_usage::Unit::Bytes.into(),
            }],
            volume_condition: None,
        }))
    }

    async fn runtime_expand_volume(
        &self,
        _: Request<RuntimeExpandVolumeRequest>,
    ) -> Result<Response<RuntimeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("can't"))
    }
}

#[tokio::test]
async fn calls_are_made_over_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("crust.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(Server::new(StatsOnlyRuntime))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(server);
    let runtime = RuntimeStorage::new(&socket);
    let expected: RuntimeCapabilities = [Rpc::VolumeStats].into_iter().collect();
    assert_eq!(runtime.capabilities().await, Ok(expected));
    assert_eq!(runtime.file_systems().await, Ok(vec!["ext4".to_owned()]));
    let stats = runtime.stats("sandbox-1", "/dev/sdx").await.unwrap();
    let space = SpaceUsage {
        total: 3,
        available: 1,
        used: 2,
    };
    assert_eq!(stats.bytes, Some(space));
    let target = Path::new("/pods/1/mount");
    let published = runtime
        .publish("sandbox-1", target, &info(&[]), &mount(None, None, false))
        .await;
    let expected_error = format!(
        "runtime at {}: RuntimePublishVolume: FailedPrecondition: there is no /.crust",
        socket.display()
    );
    assert_eq!(published.unwrap_err().to_string(), expected_error);
    let expanded = runtime.expand("sandbox-1", "/dev/sdx", 0).await;
    assert_eq!(expanded.unwrap_err().code(), Code::Unimplemented);
}

//! The calls of the CRI.

use std::time::Duration;

use crust_proto::cri::v1::{
    ContainerConfig, CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, Image, ImageSpec,
    ImageStatusRequest, PodSandboxConfig, PullImageRequest, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest, VersionResponse,
};
use tonic::Code;

use super::{CALL_TIMEOUT, Cri, CriError, LONG_CALL_TIMEOUT};

impl Cri {
    pub(crate) async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest::default();
        let response = self.call_runtime("Version", CALL_TIMEOUT, |mut client| async move {
            client.version(request).await
        });
        response.await
    }

    /// Calls `RunPodSandbox` with a runtime handler. Returns the ID of the sandbox.
    pub(crate) async fn run_sandbox(
        &self,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_owned(),
        };
        let response = self.call_runtime(
            "RunPodSandbox",
            LONG_CALL_TIMEOUT,
            |mut client| async move { client.run_pod_sandbox(request).await },
        );
        Ok(response.await?.pod_sandbox_id)
    }

    /// Calls `StopPodSandbox`. Succeeds if the sandbox doesn't exist.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let response = self.call_runtime("StopPodSandbox", CALL_TIMEOUT, |mut client| async move {
            client.stop_pod_sandbox(request).await
        });
        ignore_not_found(response.await)
    }

    /// Calls `RemovePodSandbox`, which also removes the containers. Succeeds if the sandbox doesn't exist.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let response =
            self.call_runtime("RemovePodSandbox", CALL_TIMEOUT, |mut client| async move {
                client.remove_pod_sandbox(request).await
            });
        ignore_not_found(response.await)
    }

    /// Calls `CreateContainer` in a sandbox whose config is `pod`. Returns the ID of the container.
    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        pod: PodSandboxConfig,
    ) -> Result<String, CriError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(pod),
        };
        let response =
            self.call_runtime("CreateContainer", CALL_TIMEOUT, |mut client| async move {
                client.create_container(request).await
            });
        Ok(response.await?.container_id)
    }

    /// Calls `StartContainer`. containerd creates the container with the runtime handler at this time.
    pub(crate) async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        let response = self.call_runtime("StartContainer", CALL_TIMEOUT, |mut client| async move {
            client.start_container(request).await
        });
        response.await.map(drop)
    }

    /// Calls `StopContainer`. The container is killed after the grace period. Succeeds if it doesn't exist.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        let timeout = grace.saturating_add(CALL_TIMEOUT);
        let response = self.call_runtime("StopContainer", timeout, |mut client| async move {
            client.stop_container(request).await
        });
        ignore_not_found(response.await)
    }

    /// Calls `RemoveContainer`. Succeeds if the container doesn't exist.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let response =
            self.call_runtime("RemoveContainer", CALL_TIMEOUT, |mut client| async move {
                client.remove_container(request).await
            });
        ignore_not_found(response.await)
    }

    /// Calls `ExecSync`, which runs a command in a container and returns when it has ended. Without a `timeout`, the
    /// command may run for any time.
    pub(crate) async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecSyncResponse, CriError> {
        // The runtime's timeout is in whole seconds, and 0 means none.
        let seconds = timeout.map_or(0, |timeout| timeout.as_millis().div_ceil(1000).max(1));
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let call_timeout = timeout.map(|timeout| timeout.saturating_add(CALL_TIMEOUT));
        let response = self.call_runtime("ExecSync", call_timeout, |mut client| async move {
            client.exec_sync(request).await
        });
        response.await
    }

    /// Calls `ImageStatus`. Returns `None` if the image isn't present.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<Image>, CriError> {
        let request = ImageStatusRequest {
            image: Some(image_spec(name)),
        };
        let response = self.call_images("ImageStatus", CALL_TIMEOUT, |mut client| async move {
            client.image_status(request).await
        });
        Ok(response.await?.image)
    }

    pub(crate) async fn pull_image(&self, name: &str) -> Result<(), CriError> {
        let request = PullImageRequest {
            image: Some(image_spec(name)),
        };
        let response = self.call_images("PullImage", LONG_CALL_TIMEOUT, |mut client| async move {
            client.pull_image(request).await
        });
        response.await.map(drop)
    }
}

fn image_spec(name: &str) -> ImageSpec {
    ImageSpec {
        image: name.to_owned(),
        ..ImageSpec::default()
    }
}

/// Turns `NotFound` into success. The CRI requires that from the runtime, but not every runtime does it.
fn ignore_not_found<T>(response: Result<T, CriError>) -> Result<(), CriError> {
    match response {
        Err(error) if error.code != Code::NotFound => Err(error),
        _ => Ok(()),
    }
}

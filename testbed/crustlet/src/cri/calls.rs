//! The calls of the CRI.

use std::time::Duration;

use crust_proto::cri::v1::{
    ContainerConfig, CreateContainerRequest, ExecSyncRequest, ExecSyncResponse, Image, ImageSpec,
    ImageStatusRequest, PodSandboxConfig, PullImageRequest, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest, VersionRequest, VersionResponse,
};
use tonic::Code;

use super::{Cri, CriError, DEADLINE, LONG};

impl Cri {
    /// `Version`
    pub(crate) async fn version(&self) -> Result<VersionResponse, CriError> {
        let request = VersionRequest::default();
        let answer = self.ask("Version", DEADLINE, |mut to| async move {
            to.version(request).await
        });
        answer.await
    }

    /// `RunPodSandbox` under a handler; the sandbox's id.
    pub(crate) async fn run_sandbox(
        &self,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: handler.to_owned(),
        };
        let answer = self.ask("RunPodSandbox", LONG, |mut to| async move {
            to.run_pod_sandbox(request).await
        });
        Ok(answer.await?.pod_sandbox_id)
    }

    /// `StopPodSandbox`; one that is gone is stopped.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let answer = self.ask("StopPodSandbox", DEADLINE, |mut to| async move {
            to.stop_pod_sandbox(request).await
        });
        gone_is_done(answer.await)
    }

    /// `RemovePodSandbox`, with all containers in it; one that is gone is removed.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let answer = self.ask("RemovePodSandbox", DEADLINE, |mut to| async move {
            to.remove_pod_sandbox(request).await
        });
        gone_is_done(answer.await)
    }

    /// `CreateContainer` in a sandbox that was run with `pod`; the container's id.
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
        let answer = self.ask("CreateContainer", DEADLINE, |mut to| async move {
            to.create_container(request).await
        });
        Ok(answer.await?.container_id)
    }

    /// `StartContainer`, which is when containerd has the handler make it.
    pub(crate) async fn start_container(&self, id: &str) -> Result<(), CriError> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        let answer = self.ask("StartContainer", DEADLINE, |mut to| async move {
            to.start_container(request).await
        });
        answer.await.map(drop)
    }

    /// `StopContainer`: what is left of it after the grace is killed. One that is gone is stopped.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), CriError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        let deadline = grace.saturating_add(DEADLINE);
        let answer = self.ask("StopContainer", deadline, |mut to| async move {
            to.stop_container(request).await
        });
        gone_is_done(answer.await)
    }

    /// `RemoveContainer`; one that is gone is removed.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let answer = self.ask("RemoveContainer", DEADLINE, |mut to| async move {
            to.remove_container(request).await
        });
        gone_is_done(answer.await)
    }

    /// `ExecSync`: runs a command in a container to its end, which is within `timeout` where there is one.
    pub(crate) async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecSyncResponse, CriError> {
        // The runtime counts whole seconds, and 0 are for ever.
        let seconds = timeout.map_or(0, |it| it.as_millis().div_ceil(1000).max(1));
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        let deadline = timeout.map(|timeout| timeout.saturating_add(DEADLINE));
        let answer = self.ask("ExecSync", deadline, |mut to| async move {
            to.exec_sync(request).await
        });
        answer.await
    }

    /// `ImageStatus`: the image, where it is there.
    pub(crate) async fn image(&self, name: &str) -> Result<Option<Image>, CriError> {
        let request = ImageStatusRequest {
            image: Some(spec(name)),
        };
        let answer = self.ask_images("ImageStatus", DEADLINE, |mut to| async move {
            to.image_status(request).await
        });
        Ok(answer.await?.image)
    }

    /// `PullImage`
    pub(crate) async fn pull_image(&self, name: &str) -> Result<(), CriError> {
        let request = PullImageRequest {
            image: Some(spec(name)),
        };
        let answer = self.ask_images("PullImage", LONG, |mut to| async move {
            to.pull_image(request).await
        });
        answer.await.map(drop)
    }
}

fn spec(name: &str) -> ImageSpec {
    ImageSpec {
        image: name.to_owned(),
        ..ImageSpec::default()
    }
}

/// Not every runtime says that it has done what was done before.
fn gone_is_done<T>(answer: Result<T, CriError>) -> Result<(), CriError> {
    match answer {
        Err(error) if error.code != Code::NotFound => Err(error),
        _ => Ok(()),
    }
}

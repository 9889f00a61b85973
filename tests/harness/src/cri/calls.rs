//! The calls, with short names.

use super::runtime_v1::image_service_client::ImageServiceClient;
use super::runtime_v1::{
    ContainerConfig, ContainerFilter, ContainerState, ContainerStats, ContainerStatsRequest,
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest, ImageSpec,
    ImageStatusRequest, LinuxContainerResources, ListContainersRequest, ListPodSandboxRequest,
    PodSandbox, PodSandboxConfig, PodSandboxStatusRequest, RemoveContainerRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, RuntimeHandlerFeatures, StartContainerRequest,
    StatusRequest, StopContainerRequest, StopPodSandboxRequest, UpdateContainerResourcesRequest,
    VersionRequest, VersionResponse,
};
use super::{Cri, CriError, ExecResult};
use crate::node::WAIT_TIMEOUT;
use crate::wait_until;

impl Cri {
    pub fn version(&self) -> Result<VersionResponse, CriError> {
        self.call(|mut to| async move { to.version(VersionRequest::default()).await })
    }

    /// Returns whether the runtime reports itself as ready (`Status`). The network need not be ready.
    pub fn is_ready(&self) -> bool {
        let answer = self.call(|mut to| async move { to.status(StatusRequest::default()).await });
        let conditions = answer
            .ok()
            .and_then(|it| it.status)
            .unwrap_or_default()
            .conditions;
        conditions
            .iter()
            .any(|condition| condition.r#type == "RuntimeReady" && condition.status)
    }

    /// Returns the features of a handler (`Status`); `None` if the runtime reports nothing about its handlers.
    #[track_caller]
    pub fn features(&self, handler: &str) -> Option<RuntimeHandlerFeatures> {
        let answer = self.call(|mut to| async move { to.status(StatusRequest::default()).await });
        let handlers = answer.expect("Status").runtime_handlers;
        let of_the_name = handlers.into_iter().find(|it| it.name == handler);
        of_the_name.map(|it| it.features.unwrap_or_default())
    }

    /// Calls `RunPodSandbox` with a handler, and returns the sandbox's id.
    pub fn run_pod(&self, pod: &PodSandboxConfig, handler: &str) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(pod.clone()),
            runtime_handler: handler.to_owned(),
        };
        let answer = self.call(|mut to| async move { to.run_pod_sandbox(request).await })?;
        Ok(answer.pod_sandbox_id)
    }

    pub fn stop_pod(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.stop_pod_sandbox(request).await })
            .map(drop)
    }

    pub fn remove_pod(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.remove_pod_sandbox(request).await })
            .map(drop)
    }

    /// Lists all sandboxes.
    pub fn pods(&self) -> Result<Vec<PodSandbox>, CriError> {
        let request = ListPodSandboxRequest::default();
        Ok(self
            .call(|mut to| async move { to.list_pod_sandbox(request).await })?
            .items)
    }

    /// Calls `CreateContainer` in a sandbox that was run with `pod`, and returns the container's id.
    pub fn create(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        pod: &PodSandboxConfig,
    ) -> Result<String, CriError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(container.clone()),
            sandbox_config: Some(pod.clone()),
        };
        let answer = self.call(|mut to| async move { to.create_container(request).await })?;
        Ok(answer.container_id)
    }

    /// Calls `StartContainer`. Only then does containerd call the runtime's `create` and `start`.
    pub fn start(&self, id: &str) -> Result<(), CriError> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.start_container(request).await })
            .map(drop)
    }

    /// Creates and starts a container, and returns its id.
    pub fn run(
        &self,
        sandbox: &str,
        container: &ContainerConfig,
        pod: &PodSandboxConfig,
    ) -> Result<String, CriError> {
        let id = self.create(sandbox, container, pod)?;
        self.start(&id)?;
        Ok(id)
    }

    /// Stops a container without a grace period, by SIGKILL.
    pub fn stop(&self, id: &str) -> Result<(), CriError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: 0,
        };
        self.call(|mut to| async move { to.stop_container(request).await })
            .map(drop)
    }

    pub fn remove(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.remove_container(request).await })
            .map(drop)
    }

    pub fn status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        Ok(self.verbose_status(id)?.0)
    }

    /// Returns the pid of a container's first process on the host.
    pub fn pid(&self, id: &str) -> Result<i32, CriError> {
        let info = self.verbose_status(id)?.1;
        Ok(pid_in(&info))
    }

    /// Returns the pid of a sandbox's first process on the host.
    pub fn pod_pid(&self, id: &str) -> Result<i32, CriError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: true,
        };
        let answer = self.call(|mut to| async move { to.pod_sandbox_status(request).await })?;
        Ok(pid_in(
            &answer.info.get("info").cloned().unwrap_or_default(),
        ))
    }

    /// Lists the containers of a sandbox, or all containers if the id is empty.
    pub fn containers(&self, sandbox: &str) -> Result<Vec<super::runtime_v1::Container>, CriError> {
        let filter = ContainerFilter {
            pod_sandbox_id: sandbox.to_owned(),
            ..ContainerFilter::default()
        };
        let request = ListContainersRequest {
            filter: Some(filter),
        };
        Ok(self
            .call(|mut to| async move { to.list_containers(request).await })?
            .containers)
    }

    pub fn update(&self, id: &str, resources: &LinuxContainerResources) -> Result<(), CriError> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(*resources),
        };
        self.call(|mut to| async move { to.update_container_resources(request).await })
            .map(drop)
    }

    pub fn stats(&self, id: &str) -> Result<ContainerStats, CriError> {
        let request = ContainerStatsRequest {
            container_id: id.to_owned(),
        };
        let answer = self.call(|mut to| async move { to.container_stats(request).await })?;
        Ok(answer.stats.unwrap_or_default())
    }

    /// Waits until a container has ended, and returns its last status.
    #[track_caller]
    pub fn wait(&self, id: &str) -> ContainerStatus {
        let mut last = ContainerStatus::default();
        wait_until("a container to end", WAIT_TIMEOUT, || {
            last = self.status(id).expect("ContainerStatus");
            last.state() == ContainerState::ContainerExited
        });
        last
    }

    /// Runs a command in a container (`ExecSync`).
    pub fn exec(&self, id: &str, command: &[&str]) -> Result<ExecResult, CriError> {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: 30,
        };
        let answer = self.call(|mut to| async move { to.exec_sync(request).await })?;
        Ok(ExecResult {
            exit_code: answer.exit_code,
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// Runs a shell script in a container, which must succeed, and returns its trimmed output.
    #[track_caller]
    pub fn sh(&self, id: &str, script: &str) -> String {
        let done = self
            .exec(id, &["/bin/sh", "-ec", script])
            .expect("ExecSync");
        assert_eq!(done.exit_code, 0, "{script}: {done:?}");
        done.stdout.trim().to_owned()
    }

    /// Returns whether an image exists (`ImageStatus`).
    pub fn has_image(&self, name: &str) -> bool {
        let image = ImageSpec {
            image: name.to_owned(),
            ..ImageSpec::default()
        };
        let mut to = ImageServiceClient::new(self.channel.clone());
        let request = ImageStatusRequest { image: Some(image) };
        let answer = self
            .runtime
            .block_on(async move { to.image_status(request).await });
        answer.is_ok_and(|answer| answer.into_inner().image.is_some())
    }

    fn verbose_status(&self, id: &str) -> Result<(ContainerStatus, String), CriError> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: true,
        };
        let answer = self.call(|mut to| async move { to.container_status(request).await })?;
        let info = answer.info.get("info").cloned().unwrap_or_default();
        Ok((answer.status.unwrap_or_default(), info))
    }
}

/// Returns the pid from containerd's verbose information, which is a JSON text.
#[track_caller]
fn pid_in(info: &str) -> i32 {
    let info: serde_json::Value = serde_json::from_str(info).unwrap_or_default();
    let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.unwrap_or_else(|| panic!("no pid in the verbose status: {info}"))
}

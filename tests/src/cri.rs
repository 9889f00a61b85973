//! A small blocking client for the Container Runtime Interface.

mod specs;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use self::runtime_v1::image_service_client::ImageServiceClient;
use self::runtime_v1::runtime_service_client::RuntimeServiceClient;
use self::runtime_v1::{
    ContainerConfig, ContainerFilter, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ImageSpec, ImageStatusRequest, ListContainersRequest,
    ListPodSandboxRequest, PodSandbox, PodSandboxConfig, PodSandboxStatus, PodSandboxStatusRequest,
    RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest,
    StatusRequest, StopContainerRequest, StopPodSandboxRequest, VersionRequest, VersionResponse,
};

/// The generated messages, under the interface's own names.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated; what a field means is the interface's documentation's to say"
)]
pub mod runtime_v1 {
    tonic::include_proto!("runtime.v1");
}

/// For one call. kubelet waits longer, up to four minutes for RunPodSandbox: a test should fail first.
const DEADLINE: Duration = Duration::from_secs(60);

/// What a call failed with, as kubelet would see it.
#[derive(Debug, Clone)]
pub struct CriError {
    /// gRPC's code.
    pub code: Code,
    /// The message.
    pub message: String,
}

impl fmt::Display for CriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl std::error::Error for CriError {}

impl From<Status> for CriError {
    fn from(status: Status) -> Self {
        Self {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}

/// What a command in a container came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code.
    pub exit_code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// A connection to a runtime's socket. Calls block; several threads may call at once.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    /// Connects to a socket when first used, and again after the runtime was restarted.
    pub fn new(socket: &Path) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a tokio runtime");
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()))
            .expect("a socket's path")
            .timeout(DEADLINE);
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Self { runtime, channel }
    }

    /// `Version`.
    pub fn version(&self) -> Result<VersionResponse, CriError> {
        self.call(|mut to| async move { to.version(VersionRequest::default()).await })
    }

    /// Whether the runtime calls itself ready (`Status`); the network needn't be.
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

    /// `RunPodSandbox` under a handler; the sandbox's id.
    pub fn run_pod(&self, pod: &PodSandboxConfig, handler: &str) -> Result<String, CriError> {
        let request = RunPodSandboxRequest {
            config: Some(pod.clone()),
            runtime_handler: handler.to_owned(),
        };
        let answer = self.call(|mut to| async move { to.run_pod_sandbox(request).await })?;
        Ok(answer.pod_sandbox_id)
    }

    /// `StopPodSandbox`.
    pub fn stop_pod(&self, id: &str) -> Result<(), CriError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.stop_pod_sandbox(request).await })
            .map(drop)
    }

    /// `RemovePodSandbox`.
    pub fn remove_pod(&self, id: &str) -> Result<(), CriError> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.remove_pod_sandbox(request).await })
            .map(drop)
    }

    /// `PodSandboxStatus`.
    pub fn pod_status(&self, id: &str) -> Result<PodSandboxStatus, CriError> {
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let answer = self.call(|mut to| async move { to.pod_sandbox_status(request).await })?;
        Ok(answer.status.unwrap_or_default())
    }

    /// `ListPodSandbox`: all of them.
    pub fn pods(&self) -> Result<Vec<PodSandbox>, CriError> {
        let request = ListPodSandboxRequest::default();
        Ok(self
            .call(|mut to| async move { to.list_pod_sandbox(request).await })?
            .items)
    }

    /// `CreateContainer` in a sandbox that was run with `pod`; the container's id.
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

    /// `StartContainer`, which is when containerd calls the runtime's `create` and `start`.
    pub fn start(&self, id: &str) -> Result<(), CriError> {
        let request = StartContainerRequest {
            container_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.start_container(request).await })
            .map(drop)
    }

    /// `CreateContainer` and `StartContainer`.
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

    /// `StopContainer` with no grace: SIGKILL.
    pub fn stop(&self, id: &str) -> Result<(), CriError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: 0,
        };
        self.call(|mut to| async move { to.stop_container(request).await })
            .map(drop)
    }

    /// `RemoveContainer`.
    pub fn remove(&self, id: &str) -> Result<(), CriError> {
        let request = RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        self.call(|mut to| async move { to.remove_container(request).await })
            .map(drop)
    }

    /// `ContainerStatus`.
    pub fn status(&self, id: &str) -> Result<ContainerStatus, CriError> {
        Ok(self.verbose_status(id)?.0)
    }

    /// The first process of a container or sandbox, on the host.
    pub fn pid(&self, id: &str) -> Result<i32, CriError> {
        let info = self.verbose_status(id)?.1;
        Ok(pid_in(&info))
    }

    /// The first process of a sandbox, on the host.
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

    /// `ListContainers`: those of a sandbox, or all for an empty id.
    pub fn containers(&self, sandbox: &str) -> Result<Vec<runtime_v1::Container>, CriError> {
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

    /// `ExecSync`.
    pub fn exec(&self, id: &str, command: &[&str]) -> Result<Executed, CriError> {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&word| word.to_owned()).collect(),
            timeout: 30,
        };
        let answer = self.call(|mut to| async move { to.exec_sync(request).await })?;
        Ok(Executed {
            exit_code: answer.exit_code,
            stdout: String::from_utf8_lossy(&answer.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&answer.stderr).into_owned(),
        })
    }

    /// The trimmed output of a shell script in a container.
    ///
    /// # Panics
    ///
    /// When it doesn't end with 0.
    #[track_caller]
    pub fn sh(&self, id: &str, script: &str) -> String {
        let done = self
            .exec(id, &["/bin/sh", "-ec", script])
            .expect("ExecSync");
        assert_eq!(done.exit_code, 0, "{script}: {done:?}");
        done.stdout.trim().to_owned()
    }

    /// Whether the image is there (`ImageStatus`).
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

    fn call<T, F>(
        &self,
        work: impl FnOnce(RuntimeServiceClient<Channel>) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = RuntimeServiceClient::new(self.channel.clone());
        let answer = self.runtime.block_on(work(client))?;
        Ok(answer.into_inner())
    }
}

/// containerd's verbose information is a JSON text with the pid.
#[track_caller]
fn pid_in(info: &str) -> i32 {
    let info: serde_json::Value = serde_json::from_str(info).unwrap_or_default();
    let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    pid.unwrap_or_else(|| panic!("no pid in the verbose status: {info}"))
}

//! A small blocking client of the Container Runtime Interface.

mod calls;
mod specs;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use self::runtime_v1::runtime_service_client::RuntimeServiceClient;
use crate::grpc;

/// The generated messages with the names of the interface.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated code; the CRI's documentation describes the fields"
)]
pub mod runtime_v1 {
    tonic::include_proto!("runtime.v1");
}

/// The timeout of one call. kubelet waits longer, up to four minutes for a sandbox, but a test should fail earlier.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The error of a call as kubelet sees it.
#[derive(Debug, Clone)]
pub struct CriError {
    pub code: Code,
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

/// The result of a command in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// A client of a container runtime's socket. Calls block; several threads may call at once.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    /// Makes a client. It connects when it is first used, and again after the runtime was restarted.
    pub fn new(socket: &Path) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a tokio runtime");
        let channel = {
            let _inside = runtime.enter();
            grpc::channel(socket, CALL_TIMEOUT)
        };
        Self { runtime, channel }
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

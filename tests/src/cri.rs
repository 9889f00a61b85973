//! A small blocking client for the Container Runtime Interface.

mod calls;
mod relay;
mod specs;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

pub use self::relay::CriRelay;
use self::runtime_v1::runtime_service_client::RuntimeServiceClient;
use crate::grpc;

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

/// For one call. kubelet waits longer, up to four minutes for a sandbox: a test should fail first.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

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
pub struct ExecResult {
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

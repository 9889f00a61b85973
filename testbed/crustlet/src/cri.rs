//! The client of the container runtime's CRI.

mod calls;
mod listing;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crust_proto::cri::v1::image_service_client::ImageServiceClient;
use crust_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use crust_serve::client::CallFailure;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};

use listing::StatusCache;

/// The timeout of a call. It is the default of kubelet's `--runtime-request-timeout`.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The timeout of calls that can take longer: images are pulled, and a sandbox's hooks mount volumes.
const LONG_CALL_TIMEOUT: Duration = Duration::from_secs(240);

/// The largest response, in bytes, as in kubelet's client. Lists of containers and the output of commands can be long.
const MAX_RESPONSE_SIZE: usize = 16 << 20;

/// The error of a call to the container runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} ({}): {code:?}: {message}{}", socket.display(), hint(*code))]
pub(crate) struct CriError {
    /// The name of the call, such as `RunPodSandbox`.
    pub(crate) call: &'static str,
    pub(crate) socket: PathBuf,
    pub(crate) code: Code,
    pub(crate) message: String,
}

const fn hint(code: Code) -> &'static str {
    match code {
        Code::Unavailable => {
            "; hint: check that the container runtime is running and listens on this socket (--container-runtime-endpoint)"
        }
        Code::Unimplemented => "; hint: use a container runtime that serves CRI runtime.v1",
        _ => "",
    }
}

/// The client of a container runtime. It connects with the first call, and reconnects after the runtime was restarted.
/// Clones share the connection.
#[derive(Debug, Clone)]
pub(crate) struct Cri {
    socket: PathBuf,
    /// The value of the owner's label. Only pods with this value are listed.
    owner: String,
    channel: Result<Channel, CallFailure>,
    cache: Arc<Mutex<StatusCache>>,
}

impl Cri {
    /// Creates the client of the runtime on a socket. It lists only the pods with the owner's label. Must be called in
    /// the context of a tokio runtime.
    pub(crate) fn new(socket: &Path, owner: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let channel = endpoint.map(|endpoint| endpoint.connect_lazy());
        // An invalid path fails with the first call, like a path without a listener.
        let channel =
            channel.map_err(|error| CallFailure::Unreachable(crust_state::error_message(&error)));
        Self {
            socket: socket.to_owned(),
            owner: owner.to_owned(),
            channel,
            cache: Arc::default(),
        }
    }

    /// Returns the value of the owner's label.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Calls the runtime service. A call is cancelled if its future is dropped.
    async fn call_runtime<T, F>(
        &self,
        call: &'static str,
        timeout: impl Into<Option<Duration>>,
        send: impl FnOnce(RuntimeServiceClient<Channel>) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = |channel| {
            let client = RuntimeServiceClient::new(channel);
            client.max_decoding_message_size(MAX_RESPONSE_SIZE)
        };
        let send = |channel| send(client(channel));
        self.call(call, timeout.into(), send).await
    }

    /// Calls the image service.
    async fn call_images<T, F>(
        &self,
        call: &'static str,
        timeout: Duration,
        send: impl FnOnce(ImageServiceClient<Channel>) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let send = |channel| send(ImageServiceClient::new(channel));
        self.call(call, Some(timeout), send).await
    }

    async fn call<T, F>(
        &self,
        call: &'static str,
        timeout: Option<Duration>,
        send: impl FnOnce(Channel) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let cri_error = |failure: CallFailure| CriError {
            call,
            socket: self.socket.clone(),
            code: failure.code(),
            message: failure.message().into_owned(),
        };
        let channel = self.channel.clone().map_err(cri_error)?;
        let result = match timeout {
            None => send(channel).await,
            Some(timeout) => {
                let result = tokio::time::timeout(timeout, send(channel)).await;
                result.map_err(|_| cri_error(CallFailure::TimedOut(timeout)))?
            }
        };
        let response = result.map_err(|status| cri_error(CallFailure::from_status(&status)))?;
        Ok(response.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_error_of_a_missing_runtime_has_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let cri = Cri::new(&socket, "id-1");
        let error = cri.pods().await.unwrap_err();
        assert_eq!(
            (error.call, error.code),
            ("ListPodSandbox", Code::Unavailable)
        );
        let message = error.to_string();
        let start = format!("ListPodSandbox ({}): Unavailable: ", socket.display());
        assert!(message.starts_with(&start), "{message}");
        assert!(message.contains("No such file"), "{message}");
        assert!(
            message.contains("hint: check that the container runtime is running"),
            "{message}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_runtime_gets_kubelets_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let cri = Cri::new(&socket, "id-1");
        let error = cri.remove_sandbox("s0").await.unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert_eq!(error.message, "no answer within 120 s");
        let grace = Duration::from_secs(30);
        let error = cri.stop_container("c0", grace).await.unwrap_err();
        assert_eq!(error.message, "no answer within 150 s");
        let error = cri.start_container("c0").await.unwrap_err();
        assert_eq!(error.message, "no answer within 120 s");
    }
}

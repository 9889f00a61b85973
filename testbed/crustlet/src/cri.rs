//! The client of the container runtime (CRI).

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

use listing::SeenBefore;

/// kubelet's `--runtime-request-timeout`.
const DEADLINE: Duration = Duration::from_secs(120);

/// For what may take long: sandboxes, in whose hooks volumes are mounted, and images.
const LONG: Duration = Duration::from_secs(240);

/// As kubelet's client has it; a node's list of containers, or what a command writes, may be long.
const MESSAGE: usize = 16 << 20;

/// A call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} ({}): {code:?}: {message}{}", socket.display(), hint(*code))]
pub(crate) struct CriError {
    /// By the interface's name.
    pub(crate) call: &'static str,
    /// Where it was asked.
    pub(crate) socket: PathBuf,
    /// gRPC's.
    pub(crate) code: Code,
    /// The runtime's own words.
    pub(crate) message: String,
}

const fn hint(code: Code) -> &'static str {
    match code {
        Code::Unavailable => {
            "; hint: is the container runtime running? --container-runtime-endpoint says where it answers"
        }
        Code::Unimplemented => "; hint: the container runtime has to serve the CRI's runtime.v1",
        _ => "",
    }
}

/// A container runtime, connected to when it is first asked, and again after it was restarted. Whoever clones it
/// has the same connection.
#[derive(Debug, Clone)]
pub(crate) struct Cri {
    socket: PathBuf,
    /// Whose pods are asked for.
    owner: String,
    channel: Result<Channel, CallFailure>,
    seen: Arc<Mutex<SeenBefore>>,
}

impl Cri {
    /// That on a socket. Of its pods only those with this owner's label are seen. In a tokio runtime's context alone.
    pub(crate) fn new(socket: &Path, owner: &str) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let channel = endpoint.map(|endpoint| endpoint.connect_lazy());
        // A path that is no URL is told with the first call, as one that nobody listens on is.
        let channel = channel.map_err(|error| CallFailure::Absent(crust_state::sentence(&error)));
        Self {
            socket: socket.to_owned(),
            owner: owner.to_owned(),
            channel,
            seen: Arc::default(),
        }
    }

    /// Whose pods are asked for.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// Asks the runtime service. Whoever doesn't wait for the answer any more takes the question back.
    async fn ask<T, F>(
        &self,
        call: &'static str,
        deadline: impl Into<Option<Duration>>,
        work: impl FnOnce(RuntimeServiceClient<Channel>) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = |channel| {
            let client = RuntimeServiceClient::new(channel);
            client.max_decoding_message_size(MESSAGE)
        };
        let work = |channel| work(client(channel));
        self.answer(call, deadline.into(), work).await
    }

    /// Asks the image service.
    async fn ask_images<T, F>(
        &self,
        call: &'static str,
        deadline: Duration,
        work: impl FnOnce(ImageServiceClient<Channel>) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let work = |channel| work(ImageServiceClient::new(channel));
        self.answer(call, Some(deadline), work).await
    }

    async fn answer<T, F>(
        &self,
        call: &'static str,
        deadline: Option<Duration>,
        work: impl FnOnce(Channel) -> F,
    ) -> Result<T, CriError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let failed = |failure: CallFailure| CriError {
            call,
            socket: self.socket.clone(),
            code: failure.code(),
            message: failure.message().into_owned(),
        };
        let channel = self.channel.clone().map_err(failed)?;
        let answer = match deadline {
            None => work(channel).await,
            Some(deadline) => {
                let answer = tokio::time::timeout(deadline, work(channel)).await;
                answer.map_err(|_| failed(CallFailure::Late(deadline)))?
            }
        };
        let answer = answer.map_err(|status| failed(CallFailure::of(&status)))?;
        Ok(answer.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_runtime_is_named_with_call_and_socket() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let cri = Cri::new(&socket, "id-1");
        let error = cri.pods().await.unwrap_err();
        assert_eq!(
            (error.call, error.code),
            ("ListPodSandbox", Code::Unavailable)
        );
        let told = error.to_string();
        let start = format!("ListPodSandbox ({}): Unavailable: ", socket.display());
        assert!(told.starts_with(&start), "{told}");
        assert!(told.contains("No such file"), "{told}");
        assert!(
            told.contains("hint: is the container runtime running?"),
            "{told}"
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

//! The client of the agent's API.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use crust_proto::crustlet::v1::node_client::NodeClient;
use crust_proto::crustlet::v1::{
    ApplyRequest, ApplyResponse, DeleteRequest, Event, EventsRequest, ExecRequest, ExecResponse,
    ListRequest, LogsRequest, LogsResponse,
};
use crust_state::error_message;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

/// The largest response, in bytes. The output of a command is one response: containerd returns up to 16 MiB of each
/// stream.
const MAX_RESPONSE_SIZE: usize = 64 * 1024 * 1024;

/// The error of a call to the agent.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// No connection could be made.
    #[error("cannot connect to the agent at {}: {cause}; hint: check that `crustlet serve` is running and listens on this socket (--socket)", socket.display())]
    Connect { socket: PathBuf, cause: String },
    /// The agent returned an error. Its message is complete.
    #[error("{0}")]
    Refused(String),
    /// The connection was lost before the response.
    #[error("lost the connection to the agent at {}: {cause}; hint: see the agent's log", socket.display())]
    ConnectionLost { socket: PathBuf, cause: String },
    /// The agent ended the stream of events, because it is shutting down.
    #[error("the agent ended the stream of events; hint: see the agent's log")]
    EventsEnded,
    /// The response can't be parsed, presumably because the agent has another version.
    #[error(
        "the agent sent an object that is not valid JSON: {0}; hint: use the same version of crustlet as the agent"
    )]
    Document(#[from] serde_json::Error),
}

/// A connection to the agent.
#[derive(Debug, Clone)]
pub(super) struct Client {
    socket: PathBuf,
    node: NodeClient<Channel>,
}

impl Client {
    /// Connects to the agent that listens on a socket.
    pub(super) async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let connect_error = |error: tonic::transport::Error| ClientError::Connect {
            socket: socket.to_owned(),
            cause: error
                .source()
                .map_or_else(|| error_message(&error), error_message),
        };
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let endpoint = endpoint.map_err(connect_error)?;
        let channel = endpoint.connect().await.map_err(connect_error)?;
        Ok(Self {
            socket: socket.to_owned(),
            node: NodeClient::new(channel).max_decoding_message_size(MAX_RESPONSE_SIZE),
        })
    }

    /// Lists objects, sorted by name. The list is empty if there is no object with the requested name.
    pub(super) async fn list(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<Value>, ClientError> {
        let request = ListRequest {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let documents = match self.node.clone().list(request).await {
            Err(status) if status.code() == Code::NotFound => Vec::new(),
            response => self.unwrap(response)?.documents,
        };
        let documents = documents
            .iter()
            .map(|document| serde_json::from_str(document));
        Ok(documents.collect::<Result<_, _>>()?)
    }

    /// Returns the recorded events. With `watch`, the stream goes on with new events.
    pub(super) async fn events(
        &self,
        request: EventsRequest,
    ) -> Result<Stream<Event>, ClientError> {
        let response = self.node.clone().events(request).await;
        Ok(self.stream(self.unwrap(response)?))
    }

    pub(super) async fn apply(&self, manifest: String) -> Result<ApplyResponse, ClientError> {
        let response = self.node.clone().apply(ApplyRequest { manifest }).await;
        self.unwrap(response)
    }

    /// Starts the deletion of an object.
    pub(super) async fn delete(&self, request: DeleteRequest) -> Result<(), ClientError> {
        let response = self.node.clone().delete(request).await;
        self.unwrap(response).map(drop)
    }

    /// Runs a command in a container.
    pub(super) async fn exec(&self, request: ExecRequest) -> Result<ExecResponse, ClientError> {
        let response = self.node.clone().exec(request).await;
        self.unwrap(response)
    }

    /// Returns the logs of a container as a stream.
    pub(super) async fn logs(
        &self,
        request: LogsRequest,
    ) -> Result<Stream<LogsResponse>, ClientError> {
        let response = self.node.clone().logs(request).await;
        Ok(self.stream(self.unwrap(response)?))
    }

    fn unwrap<T>(&self, response: Result<Response<T>, Status>) -> Result<T, ClientError> {
        let response = response.map_err(|status| client_error(&self.socket, &status));
        response.map(Response::into_inner)
    }

    fn stream<T>(&self, messages: Streaming<T>) -> Stream<T> {
        Stream {
            socket: self.socket.clone(),
            messages,
        }
    }
}

/// A streamed response of the agent.
#[derive(Debug)]
pub(super) struct Stream<T> {
    socket: PathBuf,
    messages: Streaming<T>,
}

impl<T> Stream<T> {
    /// Returns the next message. `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<T>, ClientError> {
        let next = self.messages.message().await;
        next.map_err(|status| client_error(&self.socket, &status))
    }
}

fn client_error(socket: &Path, status: &Status) -> ClientError {
    // A status that the agent sent has no source.
    if let Some(cause) = status.source() {
        return ClientError::ConnectionLost {
            socket: socket.to_owned(),
            cause: error_message(cause),
        };
    }
    let message = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    ClientError::Refused(message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failed_connection_has_a_hint() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("crustlet.sock");
        let error = Client::connect(&socket).await.unwrap_err().to_string();
        let start = format!("cannot connect to the agent at {}: ", socket.display());
        assert!(error.starts_with(&start), "{error}");
        assert!(error.contains("No such file or directory"), "{error}");
        assert!(
            error.contains("; hint: check that `crustlet serve` is running"),
            "{error}"
        );
    }

    #[test]
    fn the_agents_message_is_passed_on() {
        let failure = |status| client_error(Path::new("/s"), &status).to_string();
        let refused = Status::invalid_argument("Pod default/web: it has no spec");
        assert_eq!(failure(refused), "Pod default/web: it has no spec");
        let without_message = Status::new(Code::Unimplemented, "");
        assert!(!failure(without_message).is_empty());
        let lost = Status::from_error(Box::new(std::io::Error::other("broken")));
        assert!(failure(lost).starts_with("lost the connection to the agent at /s: "));
    }
}

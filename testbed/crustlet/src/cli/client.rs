//! The client of a running agent.

use std::error::Error as _;
use std::path::{Path, PathBuf};

use crust_proto::crustlet::v1::node_client::NodeClient;
use crust_proto::crustlet::v1::{
    ApplyRequest, ApplyResponse, DeleteRequest, Event, EventsRequest, ExecRequest, ExecResponse,
    ListRequest, LogsRequest, LogsResponse,
};
use crust_state::sentence;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

/// In bytes: what a command has written is one answer, and containerd takes 16 MiB of it on each stream.
const LARGEST: usize = 64 * 1024 * 1024;

/// An error of a call.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nobody listens.
    #[error("no agent answers at {}: {reason}; hint: does `crustlet serve` run, and by this socket (--socket)?", socket.display())]
    Absent { socket: PathBuf, reason: String },
    /// The agent's own words.
    #[error("{0}")]
    Refused(String),
    /// The connection ended before the answer.
    #[error("the agent at {} went away: {reason}; hint: its log says why", socket.display())]
    Lost {
        socket: PathBuf,
        /// How it was noticed.
        reason: String,
    },
    /// The stream of events has ended before it was interrupted: the agent is about to end.
    #[error("the agent tells no more events; hint: its log says why")]
    Ended,
    /// The agent is another version.
    #[error("the agent told of an object that is no JSON: {0}")]
    Document(#[from] serde_json::Error),
}

/// The agent.
#[derive(Debug, Clone)]
pub(super) struct Client {
    socket: PathBuf,
    node: NodeClient<Channel>,
}

impl Client {
    /// The one that listens there.
    pub(super) async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let absent = |error: tonic::transport::Error| ClientError::Absent {
            socket: socket.to_owned(),
            reason: error.source().map_or_else(|| sentence(&error), sentence),
        };
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let channel = endpoint.map_err(absent)?.connect().await.map_err(absent)?;
        Ok(Self {
            socket: socket.to_owned(),
            node: NodeClient::new(channel).max_decoding_message_size(LARGEST),
        })
    }

    /// Lists objects by their names. Empty if there is none by the name that was asked for.
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
            answer => self.answer(answer)?.documents,
        };
        let documents = documents.iter().map(|it| serde_json::from_str(it));
        Ok(documents.collect::<Result<_, _>>()?)
    }

    /// Events, and with `watch` those that come.
    pub(super) async fn events(
        &self,
        request: EventsRequest,
    ) -> Result<Stream<Event>, ClientError> {
        let answer = self.node.clone().events(request).await;
        Ok(self.stream(self.answer(answer)?))
    }

    /// Writes manifests.
    pub(super) async fn apply(&self, manifest: String) -> Result<ApplyResponse, ClientError> {
        let answer = self.node.clone().apply(ApplyRequest { manifest }).await;
        self.answer(answer)
    }

    /// Takes an object away.
    pub(super) async fn delete(&self, request: DeleteRequest) -> Result<(), ClientError> {
        let answer = self.node.clone().delete(request).await;
        self.answer(answer).map(drop)
    }

    /// Runs a command in a container.
    pub(super) async fn exec(&self, request: ExecRequest) -> Result<ExecResponse, ClientError> {
        let answer = self.node.clone().exec(request).await;
        self.answer(answer)
    }

    /// Returns the stream of what a container writes.
    pub(super) async fn logs(
        &self,
        request: LogsRequest,
    ) -> Result<Stream<LogsResponse>, ClientError> {
        let answer = self.node.clone().logs(request).await;
        Ok(self.stream(self.answer(answer)?))
    }

    fn answer<T>(&self, answer: Result<Response<T>, Status>) -> Result<T, ClientError> {
        let answer = answer.map_err(|status| failure(&self.socket, &status));
        answer.map(Response::into_inner)
    }

    fn stream<T>(&self, parts: Streaming<T>) -> Stream<T> {
        Stream {
            socket: self.socket.clone(),
            parts,
        }
    }
}

/// An answer in parts.
#[derive(Debug)]
pub(super) struct Stream<T> {
    socket: PathBuf,
    parts: Streaming<T>,
}

impl<T> Stream<T> {
    /// The next part; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<T>, ClientError> {
        let next = self.parts.message().await;
        next.map_err(|status| failure(&self.socket, &status))
    }
}

fn failure(socket: &Path, status: &Status) -> ClientError {
    // Of those that came over the wire nothing is the cause here.
    if let Some(cause) = status.source() {
        return ClientError::Lost {
            socket: socket.to_owned(),
            reason: sentence(cause),
        };
    }
    let words = match status.message() {
        "" => status.code().description(),
        message => message,
    };
    ClientError::Refused(words.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn where_nobody_listens_it_is_said_what_to_start() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("crustlet.sock");
        let error = Client::connect(&socket).await.unwrap_err().to_string();
        let start = format!("no agent answers at {}: ", socket.display());
        assert!(error.starts_with(&start), "{error}");
        assert!(error.contains("No such file or directory"), "{error}");
        assert!(
            error.contains("; hint: does `crustlet serve` run"),
            "{error}"
        );
    }

    #[test]
    fn the_agents_words_are_told_as_they_are() {
        let failure = |status| failure(Path::new("/s"), &status).to_string();
        let refused = Status::invalid_argument("Pod default/web: it has no spec");
        assert_eq!(failure(refused), "Pod default/web: it has no spec");
        let wordless = Status::new(Code::Unimplemented, "");
        assert!(!failure(wordless).is_empty());
        let lost = Status::from_error(Box::new(std::io::Error::other("broken")));
        assert!(failure(lost).starts_with("the agent at /s went away: "));
    }
}

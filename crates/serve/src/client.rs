//! A gRPC call on a unix socket. Its failures read like those of grpc-go, the library that kubelet uses.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use crust_state::error_message;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status, TimeoutExpired};

use crate::go_code;

/// The failure of a call. It is displayed as grpc-go does: `FailedPrecondition: it is in use`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", go_code(self.code()), self.message())]
pub enum CallFailure {
    /// No connection could be made. The server has not received the request.
    Unreachable(String),
    /// The connection or the call on it ended before there was a response. The server may have carried out the call.
    ConnectionLost(String),
    /// There was no response within this time. The server may still carry out the call.
    TimedOut(Duration),
    /// The server responded with an error. Its message is on one line and limited in length.
    ErrorStatus { code: Code, message: String },
}

/// The message of a server's status, as an error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct StatusMessage(String);

impl CallFailure {
    /// Converts the status of a call for which the client library had no deadline. (If the library had a deadline, use
    /// [`Self::TimedOut`] when the deadline has passed.)
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        let Some(source) = status.source() else {
            // A status that the server sent has no source.
            return Self::ErrorStatus {
                code: status.code(),
                message: error_message(&StatusMessage(status.message().to_owned())),
            };
        };
        if causes(source).any(<dyn Error>::is::<ConnectError>) {
            return Self::Unreachable(error_message(source));
        }
        Self::ConnectionLost(error_message(source))
    }

    /// Returns the code of the server's response. Without a response it is grpc-go's code: `Unavailable` if the
    /// connection couldn't be made or was lost, `DeadlineExceeded` after the timeout.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Unreachable(_) | Self::ConnectionLost(_) => Code::Unavailable,
            Self::TimedOut(_) => Code::DeadlineExceeded,
            Self::ErrorStatus { code, .. } => *code,
        }
    }

    /// Returns the message without the code.
    #[must_use]
    pub fn message(&self) -> Cow<'_, str> {
        match self {
            Self::Unreachable(message)
            | Self::ConnectionLost(message)
            | Self::ErrorStatus { message, .. } => message.into(),
            Self::TimedOut(timeout) => format!("no answer within {} s", timeout.as_secs()).into(),
        }
    }
}

/// Makes one call on a new connection, because the server on the socket can be replaced at any time. `method` makes a
/// client from the channel and calls it. The call ends after `timeout`, which the server is told as its deadline.
pub async fn call<C, A, F>(
    socket: &Path,
    timeout: Duration,
    request: C,
    method: impl FnOnce(Channel, Request<C>) -> F,
) -> Result<A, CallFailure>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let call = async {
        let channel = connect(socket).await?;
        let mut request = Request::new(request);
        request.set_timeout(timeout);
        let response = method(channel, request).await;
        response.map(Response::into_inner).map_err(|status| {
            // The transport has the same timeout, and reports it like a lost connection.
            let is_timeout = causes(&status).any(<dyn Error>::is::<TimeoutExpired>);
            match CallFailure::from_status(&status) {
                _ if is_timeout => CallFailure::TimedOut(timeout),
                CallFailure::Unreachable(reason) => unreachable_server(socket, &reason),
                failure => failure,
            }
        })
    };
    tokio::time::timeout(timeout, call)
        .await
        .unwrap_or(Err(CallFailure::TimedOut(timeout)))
}

async fn connect(socket: &Path) -> Result<Channel, CallFailure> {
    let failed =
        |error: tonic::transport::Error| unreachable_server(socket, &error_message(&error));
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

fn unreachable_server(socket: &Path, reason: &str) -> CallFailure {
    let socket = socket.display();
    CallFailure::Unreachable(format!(
        "{reason}; hint: check that the server is running and listens on {socket}; in a container, also that the \
         directory of the socket is mounted"
    ))
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&it| it.source())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdUnixListener;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(120);

    async fn failure(socket: &Path) -> CallFailure {
        let request = HealthCheckRequest {
            service: "ours.Node".to_owned(),
        };
        let check = |channel, request| async move {
            let mut client = HealthClient::new(channel);
            client.check(request).await
        };
        call(socket, TIMEOUT, request, check).await.unwrap_err()
    }

    #[tokio::test]
    async fn an_unreachable_server_is_unavailable_with_a_hint() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        drop(StdUnixListener::bind(&socket).unwrap());
        let failure = failure(&socket).await;
        assert!(
            matches!(failure, CallFailure::Unreachable(_)),
            "{failure:?}"
        );
        let message = failure.to_string();
        assert!(message.starts_with("Unavailable: "), "{message}");
        let hint = format!(
            "; hint: check that the server is running and listens on {};",
            socket.display()
        );
        assert!(message.contains(&hint), "{message}");
    }

    #[tokio::test]
    async fn a_connection_that_ends_before_the_response_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.windows(9).any(|it| it == b"ours.Node") {
                assert_ne!(connection.read_buf(&mut received).await.unwrap(), 0);
            }
        };
        let (failure, ()) = tokio::join!(failure(&socket), server);
        assert!(
            matches!(failure, CallFailure::ConnectionLost(_)),
            "{failure:?}"
        );
        assert_eq!(failure.code(), Code::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_respond_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let _listener = StdUnixListener::bind(&socket).unwrap();
        let failure = failure(&socket).await;
        assert_eq!(failure, CallFailure::TimedOut(TIMEOUT));
        assert_eq!(
            failure.to_string(),
            "DeadlineExceeded: no answer within 120 s"
        );
    }
}

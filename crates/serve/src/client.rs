//! A gRPC call on a unix socket: what it failed of is told as gRPC's own library for Go tells it, which is kubelet's.

use std::borrow::Cow;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use crust_state::error_message;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status, TimeoutExpired};

use crate::go_code;

/// How a call has failed: `FailedPrecondition: it is in use`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", go_code(self.code()), self.message())]
pub enum CallFailure {
    /// Nobody listens, or takes a connection: nothing has been asked.
    Unreachable(String),
    /// The connection ended before an answer, or the call on it did. What became of the call nobody knows.
    ConnectionLost(String),
    /// No answer came in time. What becomes of the call nobody knows.
    TimedOut(Duration),
    /// The answer, on one line, and not without end.
    ErrorStatus {
        /// The code of the answer.
        code: Code,
        /// The message of the answer.
        message: String,
    },
}

/// A message of another process.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Told(String);

impl CallFailure {
    /// Returns the failure of a call on which the client had set no deadline of its own.
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        let Some(source) = status.source() else {
            // What was answered has no source.
            return Self::ErrorStatus {
                code: status.code(),
                message: error_message(&Told(status.message().to_owned())),
            };
        };
        if causes(source).any(<dyn Error>::is::<ConnectError>) {
            return Self::Unreachable(error_message(source));
        }
        Self::ConnectionLost(error_message(source))
    }

    /// Returns the code of the answer. Without an answer it is that of gRPC's library for Go: a connection that can't
    /// be made or was lost is `Unavailable`, no answer in time `DeadlineExceeded`.
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
            Self::TimedOut(deadline) => format!("no answer within {} s", deadline.as_secs()).into(),
        }
    }
}

/// Calls on a connection of its own, as who listens there may be replaced at any time; `method` is that of a client
/// that is made of the channel.
pub async fn call<C, A, F>(
    socket: &Path,
    deadline: Duration,
    request: C,
    method: impl FnOnce(Channel, Request<C>) -> F,
) -> Result<A, CallFailure>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let answered = timeout(deadline, async {
        let channel = connect(socket).await?;
        let mut request = Request::new(request);
        // Who answers is told how long that is of use.
        request.set_timeout(deadline);
        let answer = method(channel, request).await;
        answer.map(Response::into_inner).map_err(|status| {
            // The transport minds that, too, and tells of it as of a loss.
            let is_late = causes(&status).any(<dyn Error>::is::<TimeoutExpired>);
            match CallFailure::from_status(&status) {
                _ if is_late => CallFailure::TimedOut(deadline),
                CallFailure::Unreachable(reason) => absent(socket, &reason),
                failure => failure,
            }
        })
    });
    answered
        .await
        .unwrap_or(Err(CallFailure::TimedOut(deadline)))
}

async fn connect(socket: &Path) -> Result<Channel, CallFailure> {
    let failed = |error: tonic::transport::Error| absent(socket, &error_message(&error));
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

fn absent(socket: &Path, reason: &str) -> CallFailure {
    let socket = socket.display();
    CallFailure::Unreachable(format!(
        "{reason}; hint: does it run, and listen on {socket}? In a container, is that socket's directory mounted?"
    ))
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&it| it.source())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as Deaf;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(120);

    async fn failure(socket: &Path) -> CallFailure {
        let request = HealthCheckRequest {
            service: "ours.Node".to_owned(),
        };
        let check = |channel, request| async move {
            let mut client = HealthClient::new(channel);
            client.check(request).await
        };
        call(socket, DEADLINE, request, check).await.unwrap_err()
    }

    #[tokio::test]
    async fn where_nobody_listens_it_is_said_where_to_look() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s");
        drop(Deaf::bind(&socket).unwrap());
        let failure = failure(&socket).await;
        assert!(
            matches!(failure, CallFailure::Unreachable(_)),
            "{failure:?}"
        );
        let told = failure.to_string();
        assert!(told.starts_with("Unavailable: "), "{told}");
        let hint = format!("; hint: does it run, and listen on {}?", socket.display());
        assert!(told.contains(&hint), "{told}");
    }

    #[tokio::test]
    async fn what_was_asked_before_the_connection_ended_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let ends = async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            while !heard.windows(9).any(|it| it == b"ours.Node") {
                assert_ne!(connection.read_buf(&mut heard).await.unwrap(), 0);
            }
        };
        let (failure, ()) = tokio::join!(failure(&socket), ends);
        assert!(
            matches!(failure, CallFailure::ConnectionLost(_)),
            "{failure:?}"
        );
        assert_eq!(failure.code(), Code::Unavailable);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_answer_is_not_waited_for_without_end() {
        let place = tempfile::tempdir().unwrap();
        let socket = place.path().join("s");
        let _listener = Deaf::bind(&socket).unwrap();
        let failure = failure(&socket).await;
        assert_eq!(failure, CallFailure::TimedOut(DEADLINE));
        assert_eq!(
            failure.to_string(),
            "DeadlineExceeded: no answer within 120 s"
        );
    }
}

//! One gRPC call on a unix socket, on a connection of its own: who listens there may be replaced at any time.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use crust_state::sentence;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status, TimeoutExpired};

/// How a call has failed: `FailedPrecondition: it is in use`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code_name(*code))]
pub(crate) struct Failure {
    /// The answer's. Where there was none it is what gRPC's own library for Go says, which is kubelet's: a
    /// connection that can't be made or was lost is `Unavailable`, no answer in time `DeadlineExceeded`.
    pub(crate) code: Code,
    /// On one line, and not without end.
    pub(crate) message: String,
}

/// What somebody else says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Told(String);

impl Failure {
    fn unavailable(error: &(dyn Error + 'static)) -> Self {
        Self {
            code: Code::Unavailable,
            message: sentence(error),
        }
    }

    fn late(deadline: Duration) -> Self {
        Self {
            code: Code::DeadlineExceeded,
            message: format!("no answer within {} s", deadline.as_secs()),
        }
    }
}

/// Calls; `method` is that of a client that is made of the channel.
pub(crate) async fn call<C, A, F>(
    socket: &Path,
    deadline: Duration,
    request: C,
    method: impl FnOnce(Channel, Request<C>) -> F,
) -> Result<A, Failure>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let answered = timeout(deadline, async {
        let channel = connect(socket).await?;
        let mut request = Request::new(request);
        // Who answers is told how long that is of use.
        request.set_timeout(deadline);
        let answer = method(channel, request).await;
        answer
            .map(Response::into_inner)
            .map_err(|status| failure(&status, deadline))
    });
    answered.await.unwrap_or(Err(Failure::late(deadline)))
}

async fn connect(socket: &Path) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let endpoint = endpoint.map_err(|error| Failure::unavailable(&error))?;
    endpoint.connect().await.map_err(|error| Failure {
        code: Code::Unavailable,
        message: format!(
            "{}; hint: does it run, and listen on {}?",
            sentence(&error),
            socket.display()
        ),
    })
}

fn failure(status: &Status, deadline: Duration) -> Failure {
    // What was answered has no source.
    let Some(source) = status.source() else {
        return Failure {
            code: status.code(),
            message: sentence(&Told(status.message().to_owned())),
        };
    };
    let mut causes = std::iter::successors(Some(source), |&it| it.source());
    if causes.any(<dyn Error>::is::<TimeoutExpired>) {
        return Failure::late(deadline);
    }
    Failure::unavailable(source)
}

/// As gRPC's library for Go spells it, and with it kubelet.
pub(crate) const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

//! Bodies of requests and responses: a request body with a timeout, a streamed response that keeps its call in
//! progress. Also the deadline that a caller sets.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::errors::bare_status;
use crate::listen::ConnectionCall;

/// The longest time that a request's message may take to arrive. A message has a few hundred bytes and comes from the
/// same machine, and until it has arrived the call counts as in progress.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the timeout that the caller has set for the call (gRPC over HTTP/2, `Timeout`: an integer and a unit), less
/// 5 % but at most 50 ms: at the caller's deadline tonic itself ends the call, with another code.
pub(super) fn caller_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (amount, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_valid = amount.len() <= 8 && amount.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u64 = amount.parse().ok().filter(|_| is_valid)?;
    let timeout = match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    };
    let margin = (timeout / 20).min(Duration::from_millis(50));
    Some(timeout.saturating_sub(margin))
}

/// Returns the status of a call whose caller's deadline has passed.
pub(super) fn caller_deadline_exceeded() -> Status {
    deadline_exceeded("the caller's deadline has passed; hint: retry the call")
}

fn message_timed_out() -> Status {
    let seconds = MESSAGE_TIMEOUT.as_secs();
    deadline_exceeded(&format!(
        "the request's message did not arrive within {seconds} s; hint: retry the call"
    ))
}

fn deadline_exceeded(message: &str) -> Status {
    bare_status(Code::DeadlineExceeded, "DEADLINE", message)
}

/// Returns the request with a body that fails if it doesn't arrive within [`MESSAGE_TIMEOUT`].
pub(super) fn with_timeout(request: Request<Body>) -> Request<Body> {
    request.map(|body| {
        Body::new(TimeoutBody {
            body,
            timeout: Box::pin(sleep(MESSAGE_TIMEOUT)),
        })
    })
}

struct TimeoutBody {
    body: Body,
    timeout: Pin<Box<Sleep>>,
}

impl hyper::body::Body for TimeoutBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        ready!(self.timeout.as_mut().poll(context));
        Poll::Ready(Some(Err(message_timed_out())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the response with a body that holds `call` until the body has been sent or dropped.
pub(super) fn hold_call(call: ConnectionCall, response: Response<Body>) -> Response<Body> {
    response.map(|body| Body::new(CallBody { body, _call: call }))
}

struct CallBody {
    body: Body,
    _call: ConnectionCall,
}

impl hyper::body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        caller_timeout(&headers)
    }

    #[test]
    fn the_timeout_is_a_little_shorter_than_the_callers() {
        assert_eq!(parsed("1S"), Some(Duration::from_millis(950)));
        assert_eq!(parsed("100m"), Some(Duration::from_millis(95)));
        assert_eq!(parsed("2M"), Some(Duration::from_millis(119_950)));
        assert_eq!(parsed("1000u"), Some(Duration::from_micros(950)));
        assert_eq!(parsed("0n"), Some(Duration::ZERO));
        assert!(parsed("99999999H").is_some());
        for invalid in ["", "S", "1", "1s", "-1S", "1.5S", "100000000S", "é"] {
            let headers = HeaderMap::from_iter([(
                http::header::HeaderName::from_static("grpc-timeout"),
                http::HeaderValue::from_bytes(invalid.as_bytes()).unwrap(),
            )]);
            assert_eq!(caller_timeout(&headers), None, "{invalid}");
        }
        assert_eq!(caller_timeout(&HeaderMap::new()), None);
    }
}

//! The bodies of a call's messages: a request that must come in time, and an answer that is a stream; and the deadlines
//! of calls.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::errors::bare_status;
use crate::listen::CallUnderWay;

/// How long a request's message may take. It is some hundred bytes, from the same machine, and meanwhile the call
/// counts as under way.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the time that the caller gives the call (gRPC over HTTP2, "Timeout": an integer and its unit), less a
/// twentieth or 50 ms: tonic ends the call at the caller's own deadline, with another code.
pub(super) fn caller_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (amount, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let digits = amount.len() <= 8 && amount.bytes().all(|byte| byte.is_ascii_digit());
    let amount: u64 = amount.parse().ok().filter(|_| digits)?;
    let limit = match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    };
    let earlier = (limit / 20).min(Duration::from_millis(50));
    Some(limit.saturating_sub(earlier))
}

/// Returns the status of a call whose deadline has passed.
pub(super) fn deadline_passed(whose: &str) -> Status {
    let message = format!("{whose} deadline has passed; hint: the call may be repeated");
    bare_status(Code::DeadlineExceeded, "DEADLINE", &message)
}

/// Returns the request with a body that fails unless it comes in time.
pub(super) fn timely(request: Request<Body>) -> Request<Body> {
    request.map(|body| {
        Body::new(TimelyBody {
            body,
            limit: Box::pin(sleep(MESSAGE_TIMEOUT)),
        })
    })
}

/// A body that fails when it takes too long.
struct TimelyBody {
    body: Body,
    limit: Pin<Box<Sleep>>,
}

impl hyper::body::Body for TimelyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        ready!(self.limit.as_mut().poll(context));
        Poll::Ready(Some(Err(deadline_passed(
            "the request's message hasn't come: its",
        ))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the answer with a body that keeps the call under way until it has been sent, or is given up.
pub(super) fn streamed(call: CallUnderWay, answer: Response<Body>) -> Response<Body> {
    answer.map(|body| Body::new(StreamedBody { body, _call: call }))
}

/// A body with its call.
struct StreamedBody {
    body: Body,
    _call: CallUnderWay,
}

impl hyper::body::Body for StreamedBody {
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

    fn of(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        caller_timeout(&headers)
    }

    #[test]
    fn a_callers_deadline_is_ours_a_little_earlier() {
        assert_eq!(of("1S"), Some(Duration::from_millis(950)));
        assert_eq!(of("100m"), Some(Duration::from_millis(95)));
        assert_eq!(of("2M"), Some(Duration::from_millis(119_950)));
        assert_eq!(of("1000u"), Some(Duration::from_micros(950)));
        assert_eq!(of("0n"), Some(Duration::ZERO));
        assert!(of("99999999H").is_some());
        for wrong in ["", "S", "1", "1s", "-1S", "1.5S", "100000000S", "é"] {
            let headers = HeaderMap::from_iter([(
                http::header::HeaderName::from_static("grpc-timeout"),
                http::HeaderValue::from_bytes(wrong.as_bytes()).unwrap(),
            )]);
            assert_eq!(caller_timeout(&headers), None, "{wrong}");
        }
        assert_eq!(caller_timeout(&HeaderMap::new()), None);
    }
}

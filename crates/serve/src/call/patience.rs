//! How long a call is waited for: its caller's message, and by its caller.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{HeaderMap, Request};
use hyper::body::{Bytes, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::failure::unseen;

/// A message is some hundred bytes, from the same machine. It has a call's place while it comes.
const MESSAGE: Duration = Duration::from_secs(10);

/// The caller's own deadline (gRPC over HTTP2, "Timeout"): an integer and its unit. Somewhat earlier,
/// for tonic gives up at that moment, with another code.
pub(super) fn of_caller(headers: &HeaderMap) -> Option<Duration> {
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

/// The deadline has passed.
pub(super) fn passed(whose: &str) -> Status {
    let message = format!("{whose} deadline has passed; hint: the call may be repeated");
    unseen(Code::DeadlineExceeded, "DEADLINE", &message)
}

/// The request, whose message comes soon or not at all.
pub(super) fn soon(request: Request<Body>) -> Request<Body> {
    request.map(|body| {
        Body::new(Soon {
            body,
            limit: Box::pin(sleep(MESSAGE)),
        })
    })
}

/// A body that fails when it takes too long.
struct Soon {
    body: Body,
    limit: Pin<Box<Sleep>>,
}

impl hyper::body::Body for Soon {
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
        Poll::Ready(Some(Err(passed("the request's message hasn't come: its"))))
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
        of_caller(&headers)
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
            assert_eq!(of_caller(&headers), None, "{wrong}");
        }
        assert_eq!(of_caller(&HeaderMap::new()), None);
    }
}

//! An answer that is a stream, with the call that it belongs to.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use hyper::body::{Bytes, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::listen::CallUnderWay;

/// Keeps the call under way until the answer has been sent, or is given up.
pub(super) fn with(call: CallUnderWay, answer: Response<Body>) -> Response<Body> {
    answer.map(|body| Body::new(Streamed { body, _call: call }))
}

/// A body with its call.
struct Streamed {
    body: Body,
    _call: CallUnderWay,
}

impl hyper::body::Body for Streamed {
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

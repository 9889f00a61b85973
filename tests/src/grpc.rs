//! gRPC on unix sockets, as kubelet and most drivers do it.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, TimeoutExpired};

use crate::wait::scaled_timeout;

/// A connection to whoever listens there, made when it is first used. To be asked for inside of a runtime.
pub(crate) fn channel(socket: &Path, deadline: Duration) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let endpoint = endpoint.expect("a socket's path");
    endpoint.timeout(scaled_timeout(deadline)).connect_lazy()
}

/// Without its metadata; where there was none, with the code of gRPC's library for Go. That of a call whose connection
/// was lost depends, with Rust's, on how far it had come.
pub(crate) fn answer<T>(answer: Result<Response<T>, Status>) -> Result<T, Status> {
    answer.map(Response::into_inner).map_err(|status| {
        // What was answered has no source.
        let Some(source) = status.source() else {
            return status;
        };
        let mut causes = std::iter::successors(Some(source), |&it| it.source());
        if causes.any(<dyn Error>::is::<TimeoutExpired>) {
            return Status::deadline_exceeded(format!("{status:?}"));
        }
        Status::unavailable(format!("{status:?}"))
    })
}

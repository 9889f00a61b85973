//! gRPC over Unix sockets, as kubelet and most drivers use it.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, TimeoutExpired};

use crate::wait::scaled_timeout;

/// Returns a channel to a socket, which connects when it is first used. It must be called within a tokio runtime.
pub fn channel(socket: &Path, deadline: Duration) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
    let endpoint = endpoint.expect("a socket's path");
    endpoint.timeout(scaled_timeout(deadline)).connect_lazy()
}

/// Removes the metadata of a response. If there was no response, the status gets the code that Go's gRPC library would
/// use, because with Rust's library the code for a lost connection depends on how far the call had got.
pub fn into_result<T>(answer: Result<Response<T>, Status>) -> Result<T, Status> {
    answer.map(Response::into_inner).map_err(|status| {
        // A status that the server sent has no source.
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

//! The client of a CSI driver.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crust_proto::csi::v1::{ControllerGetCapabilitiesRequest, NodeGetCapabilitiesRequest};
use crust_serve::client::{self, CallFailure};
use tonic::Code;

use super::{Capabilities, ControllerCapabilities, CsiRequest};
use crate::metrics::Metrics;

/// The timeout of a call. kubelet has the same timeout.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// A driver that listens on a socket. Each call makes a new connection, because the driver can be replaced at any time.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Inner>);

struct Inner {
    name: String,
    socket: PathBuf,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, socket, .. } = &*self.0;
        write!(f, "{name}={}", socket.display())
    }
}

/// The error of a failed call. [`is_final`](Self::is_final) returns whether the call certainly has no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver {driver}: {}: {failure}", method_name(method))]
pub(crate) struct CallError {
    driver: String,
    method: &'static str,
    failure: CallFailure,
}

/// Returns the name of a method without its service.
fn method_name(method: &'static str) -> &'static str {
    method.rsplit('/').next().unwrap_or(method)
}

impl CallError {
    /// Returns the gRPC code of the driver's response. Without a response, it is the code of [`CallFailure`].
    pub(crate) fn code(&self) -> Code {
        self.failure.code()
    }

    /// Returns whether the driver has certainly not done what was requested, and won't do it. The rule is kubelet's
    /// `isFinalError` (`pkg/volume/csi/csi_client.go`). Any other error leaves the volume in an uncertain state.
    pub(crate) fn is_final(&self) -> bool {
        is_final(self.failure.code())
    }
}

const fn is_final(code: Code) -> bool {
    match code {
        // The call was cancelled or timed out, or the connection was lost. The driver may still be working on the call.
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable
        // Too many operations are in progress, and the requested operation may be one of them.
        | Code::ResourceExhausted
        // An operation on the volume is in progress (CSI specification).
        | Code::Aborted => false,
        _ => true,
    }
}

impl Driver {
    /// Creates the client of the driver that listens on a socket. No connection is made.
    pub(crate) fn new(name: &str, socket: &Path, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            socket: socket.to_owned(),
            metrics,
        }))
    }

    /// Returns the driver's name, such as `csi.example.com`.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Calls the driver, and records the duration in the metrics.
    pub(crate) async fn call<R: CsiRequest>(&self, request: R) -> Result<R::Response, CallError> {
        let Inner {
            name,
            socket,
            metrics,
        } = &*self.0;
        let start = Instant::now();
        let result = client::call(socket, CALL_TIMEOUT, request, R::send).await;
        let code = result.as_ref().err().map_or(Code::Ok, CallFailure::code);
        metrics.csi_call(name, R::METHOD, code, start.elapsed());
        result.map_err(|failure| CallError {
            driver: name.clone(),
            method: R::METHOD,
            failure,
        })
    }

    pub(crate) async fn node_capabilities(&self) -> Result<Capabilities, CallError> {
        let response = self.call(NodeGetCapabilitiesRequest {}).await?;
        Ok(response.into())
    }

    /// Calls `ControllerGetCapabilities`.
    pub(crate) async fn controller_capabilities(
        &self,
    ) -> Result<ControllerCapabilities, CallError> {
        let response = self.call(ControllerGetCapabilitiesRequest {}).await?;
        Ok(response.into())
    }
}

#[cfg(test)]
mod tests;

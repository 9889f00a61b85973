//! The client of a driver.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crust_proto::csi::v1::{ControllerGetCapabilitiesRequest, NodeGetCapabilitiesRequest};
use crust_serve::client::{self, CallFailure};
use tonic::Code;

use super::{Call, Capabilities, ControllerCapabilities};
use crate::metrics::Metrics;

/// The time limit of a call, which is kubelet's.
const DEADLINE: Duration = Duration::from_secs(120);

/// A driver by its socket. Nothing is connected between calls: it may be replaced at any time.
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

/// A driver's refusal, or that nothing is known of what became of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("driver {driver}: {}: {failure}", short(method))]
pub(crate) struct CallError {
    driver: String,
    method: &'static str,
    failure: CallFailure,
}

/// `NodeStageVolume`
fn short(method: &'static str) -> &'static str {
    method.rsplit('/').next().unwrap_or(method)
}

impl CallError {
    /// Returns the code of the driver's answer. Without an answer it is that of [`CallFailure`].
    pub(crate) fn code(&self) -> Code {
        self.failure.code()
    }

    /// Whether the driver is surely not doing it any more, and hasn't done it. kubelet's `isFinalError`
    /// (`pkg/volume/csi/csi_client.go`); what isn't leaves a volume uncertain.
    pub(crate) fn is_final(&self) -> bool {
        is_final(self.failure.code())
    }
}

const fn is_final(code: Code) -> bool {
    match code {
        // The caller has given up, or the connection was lost: the call may still be under way.
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable
        // Too much is under way; this may be among it.
        | Code::ResourceExhausted
        // CSI: something is under way for the volume.
        | Code::Aborted => false,
        _ => true,
    }
}

impl Driver {
    /// Whoever listens there by then.
    pub(crate) fn new(name: &str, socket: &Path, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            socket: socket.to_owned(),
            metrics,
        }))
    }

    /// `csi.example.com`
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns its socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// One call.
    pub(crate) async fn call<C: Call>(&self, request: C) -> Result<C::Answer, CallError> {
        let Inner {
            name,
            socket,
            metrics,
        } = &*self.0;
        let begun = Instant::now();
        let answer = client::call(socket, DEADLINE, request, C::on).await;
        let code = answer.as_ref().err().map_or(Code::Ok, CallFailure::code);
        metrics.csi_call(name, C::METHOD, code, begun.elapsed());
        answer.map_err(|failure| CallError {
            driver: name.clone(),
            method: C::METHOD,
            failure,
        })
    }

    /// Asks for its capabilities on a node. It is asked each time, for it may have been replaced.
    pub(crate) async fn node_capabilities(&self) -> Result<Capabilities, CallError> {
        let answer = self.call(NodeGetCapabilitiesRequest {}).await?;
        Ok(answer.into())
    }

    /// Asks for the capabilities of its controller service.
    pub(crate) async fn controller_capabilities(
        &self,
    ) -> Result<ControllerCapabilities, CallError> {
        let answer = self.call(ControllerGetCapabilitiesRequest {}).await?;
        Ok(answer.into())
    }
}

#[cfg(test)]
mod tests;

//! Starts the gRPC server and runs it until a signal ends it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crust_proto::csi::v1::controller_server::{ControllerServer, SERVICE_NAME as CONTROLLER};
use crust_proto::csi::v1::identity_server::{IdentityServer, SERVICE_NAME as IDENTITY};
use crust_proto::csi::v1::node_server::{NodeServer, SERVICE_NAME as NODE};
use crust_serve::listen::{self, Connections};
use crust_serve::process::{SignalEvent, Signals, notify_ready, notify_stopping};
use crust_serve::{DEFAULT_MAX_CONNECTIONS, Daemon, KnownSockets, ServerLimits, Servers};
use tokio::runtime::Handle;
use tonic::service::Routes;

use crate::block::BlockDriver;
use crate::csi_driver::CsiDriver;
use crate::driver_context::DriverContext;
use crate::nfs::NfsDriver;
use crate::ops::Ops;
use crate::services::{ControllerService, IdentityService, NodeService, ServiceState};
use crate::settings::{DriverKind, Settings};

/// The maximum number of calls in progress on one connection. An orchestrator uses one connection for all volumes.
const MAX_STREAMS: u32 = 128;

/// The time that calls in progress have to complete at the end. The default grace period of a pod is 30 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(20);

static DAEMON: Daemon = Daemon {
    name: crate::NAME,
    method_prefix: "csi.",
    quiet_methods: &[
        "Probe",
        "GetCapacity",
        "NodeGetVolumeStats",
        "NodeGetVolumeHealth",
        "NodeGetStorageHealth",
        "ControllerGetVolumeHealth",
        "ControllerListVolumeHealth",
    ],
    streaming_methods: &[],
    descriptors: crust_proto::csi::FILE_DESCRIPTOR_SET,
    busy_hint: "retry later, or raise --max-calls",
    sockets: KnownSockets {
        names: &[],
        setting: "--endpoint",
        unserved_reason: "crust-csi does not support socket activation",
    },
};

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(settings: Settings) -> Result<()> {
    // This comes before the server answers, because a caller may send a signal after its first answer.
    let mut signals = Signals::new()?;
    let endpoint = settings.endpoint.clone();
    let limits = ServerLimits {
        connections: DEFAULT_MAX_CONNECTIONS,
        calls: settings.max_calls,
        streams: MAX_STREAMS,
    };
    let ops = Ops::new(&settings.crust_ops, Handle::current());
    let context = DriverContext::new(settings, ops)?;
    let routes = match context.settings.driver {
        DriverKind::Block => routes(BlockDriver::new(context)?),
        DriverKind::Nfs => routes(NfsDriver::new(context)?),
    };
    let socket = listen::bind_unix(&DAEMON, &endpoint)?;
    let mut servers = Servers::new(&DAEMON, limits, Arc::new(()));
    servers
        .add(
            &[IDENTITY, CONTROLLER, NODE],
            routes,
            Connections::new(NODE, socket),
        )
        .await?;
    notify_ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %endpoint.display(), "serving");
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                // There is no configuration to reload.
                SignalEvent::Reload => {}
                SignalEvent::Terminate(name) => {
                    tracing::info!("{name}: shutting down: waiting for calls in progress");
                    break;
                }
            },
            failed = servers.wait_for_failure() => return Err(failed.into()),
        }
    }
    notify_stopping();
    Ok(servers.shut_down(DRAIN_TIMEOUT).await?)
}

fn routes(driver: impl CsiDriver) -> Routes {
    let shared = ServiceState::new(driver);
    Routes::new(IdentityServer::new(IdentityService(shared.clone())))
        .add_service(ControllerServer::new(ControllerService(shared.clone())))
        .add_service(NodeServer::new(NodeService(shared)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_end_later_than_calls_in_progress() {
        let daemon_set = include_str!("../../../deploy/kubernetes/csi/daemonset.yaml");
        let key = "terminationGracePeriodSeconds: ";
        let mut lines = daemon_set.lines();
        let seconds = lines.find_map(|line| line.trim_start().strip_prefix(key));
        let seconds = seconds.unwrap().parse().unwrap();
        assert!(DRAIN_TIMEOUT < Duration::from_secs(seconds), "{seconds}");
    }
}

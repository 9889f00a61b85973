//! The plugin, from its socket to its end.

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

use crate::driver::Driver;
use crate::ops::Ops;
use crate::services::{ControllerService, IdentityService, NodeService, ServiceState};
use crate::settings::Settings;

/// The most calls under way on a connection. An orchestrator has one connection for all its volumes.
const STREAMS: u32 = 128;

/// How long calls under way have at the end. A `DaemonSet`'s pod has 30 s.
const DRAIN: Duration = Duration::from_secs(20);

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
    descriptors: crust_proto::csi::DESCRIPTORS,
    busy_hint: "try again later, or raise --max-calls",
    sockets: KnownSockets {
        names: &[],
        setting: "--endpoint",
        unserved_reason: "crust-csi takes none",
    },
};

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(settings: Settings) -> Result<()> {
    // Before anybody can call: whoever is answered may send one.
    let mut signals = Signals::new()?;
    let endpoint = settings.endpoint.clone();
    let limits = ServerLimits {
        connections: DEFAULT_MAX_CONNECTIONS,
        calls: settings.max_calls,
        streams: STREAMS,
    };
    let ops = Ops::new(&settings.crust_ops, Handle::current());
    let driver = Driver::new(settings, ops)?;
    let socket = listen::bind_unix(&DAEMON, &endpoint)?;
    let shared = ServiceState::new(driver);
    let routes = Routes::new(IdentityServer::new(IdentityService(shared.clone())))
        .add_service(ControllerServer::new(ControllerService(shared.clone())))
        .add_service(NodeServer::new(NodeService(shared)));
    let mut servers = Servers::new(&DAEMON, limits, Arc::new(()));
    servers
        .add(
            &[IDENTITY, CONTROLLER, NODE],
            routes,
            Connections::new(NODE, socket),
        )
        .await?;
    notify_ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %endpoint.display(), "serves");
    loop {
        tokio::select! {
            told = signals.next() => match told {
                // There is no configuration but the command line.
                SignalEvent::Reload => {}
                SignalEvent::Terminate(name) => {
                    tracing::info!("{name}: finishes what is under way");
                    break;
                }
            },
            failed = servers.wait_for_failure() => return Err(failed.into()),
        }
    }
    notify_stopping();
    Ok(servers.shut_down(DRAIN).await?)
}

//! Starts the agent with its servers, and stops them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::node_server::{NodeServer, SERVICE_NAME as NODE};
use crust_serve::http::Listener;
use crust_serve::listen::{self, Connections};
use crust_serve::process::{SignalEvent, Signals, notify_ready, notify_stopping};
use crust_serve::{DEFAULT_MAX_CONNECTIONS, Daemon, KnownSockets, ServerLimits, Servers};
use tokio::sync::mpsc;
use tonic::service::Routes;

use crate::agent::Agent;
use crate::api::Api;
use crate::cri::Cri;
use crate::events::Events;
use crate::metrics::{self, Metrics};
use crate::operations::Context;
use crate::plugins::Drivers;
use crate::root::Root;
use crate::settings::{MANIFESTS, Settings};
use crate::volumes::layout::RootDirLayout;

/// The maximum number of concurrent calls on the socket. Only commands that a user runs make such calls.
const MAX_CALLS: usize = 256;

/// The time that calls may still take while the server shuts down.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

static DAEMON: Daemon = Daemon {
    name: crate::NAME,
    method_prefix: "crustlet.",
    quiet_methods: &["List", "Events"],
    streaming_methods: &["Events", "Logs"],
    descriptors: crust_proto::crustlet::FILE_DESCRIPTOR_SET,
    busy_hint: "retry later",
    sockets: KnownSockets {
        names: &[],
        setting: "--listen",
        unserved_reason: "crustlet can't be started by socket activation",
    },
};

/// Serves until SIGTERM or SIGINT. Pods and volumes are left as they are, and the next start finds them.
pub(crate) async fn serve(mut settings: Settings) -> Result<()> {
    // Signals are handled before the server answers, because a caller may send a signal after the first answer.
    let mut signals = Signals::new()?;
    let root = Root::acquire(&settings.root_dir)?;
    root.path().clone_into(&mut settings.root_dir);
    let node: Arc<str> = settings.node_name().into();
    let metrics = Arc::new(Metrics::new());
    let drivers = Drivers::new(&settings.csi, Arc::clone(&metrics));
    let context = Context {
        layout: RootDirLayout::new(&settings.root_dir),
        node: Arc::clone(&node),
        drivers: drivers.clone(),
        events: Events::default(),
        metrics: Arc::clone(&metrics),
    };
    // crustlet creates only the default directory of manifests. Other directories may be created by the user later.
    crate::operations::create_directory(&settings.root_dir.join(MANIFESTS))?;
    let cri = Cri::new(&settings.container_runtime_endpoint, root.id());
    let (query_sender, queries) = mpsc::unbounded_channel();
    let api = Api::new(
        settings.manifests(),
        context.events.clone(),
        cri.clone(),
        query_sender,
    );
    // The agent reconstructs the volumes from the disk before anything else happens (KEP-3756).
    let agent = Agent::new(&settings, context.clone(), cri, queries)?;
    let registry = context.layout.registry();
    crate::operations::create_directory(&registry)?;
    tokio::spawn(drivers.watch(registry));
    let limits = ServerLimits {
        connections: DEFAULT_MAX_CONNECTIONS,
        calls: MAX_CALLS,
        streams: 64,
    };
    let socket = listen::bind_unix(&DAEMON, &settings.listen)?;
    let mut servers = Servers::new(&DAEMON, limits, Arc::new(()));
    let routes = Routes::new(NodeServer::new(api));
    servers
        .add(&[NODE], routes, Connections::new(NODE, socket))
        .await?;
    if let Some(address) = settings.metrics_address {
        let listener = Listener::tcp(&address, &[]).await?;
        tokio::spawn(metrics::serve(listener, metrics));
    }
    notify_ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), root = %settings.root_dir.display(), "serving");
    let mut agent = tokio::spawn(agent.run());
    loop {
        tokio::select! {
            event = signals.next() => match event {
                // There is no configuration file to reload.
                SignalEvent::Reload => {}
                SignalEvent::Terminate(name) => {
                    tracing::info!("{name}: shutting down: waiting for calls in progress; pods keep running");
                    break;
                }
            },
            failed = servers.wait_for_failure() => return Err(failed.into()),
            ended = &mut agent => return Ok(ended?),
        }
    }
    notify_stopping();
    agent.abort();
    Ok(servers.shut_down(DRAIN_TIMEOUT).await?)
}

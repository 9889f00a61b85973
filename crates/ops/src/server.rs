//! The servers, from their sockets to their end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_server::{
    RuntimeAssistedStorageManagementServer as StorageServer, SERVICE_NAME as STORAGE,
};
use crust_proto::v1::runtime_server::{RuntimeServer, SERVICE_NAME as RUNTIME};
use sd_notify::NotifyState;
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::call::Calls;
use crate::cli::Processes;
use crate::listen::{Activated, Connections, MetricsListener};
use crate::metrics::{self, Metrics};
use crate::node::Node;
use crate::services::{RuntimeService, Shared, StorageService};
use crate::settings::Settings;
use crate::volumes::Volumes;

/// What calls under way are given when the process is told to end.
const DRAIN: Duration = Duration::from_secs(20);

/// What clients are given to close their connections after that; one that is stopped never does.
const PARTING: Duration = Duration::from_secs(1);

/// The settings, and where they come from.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) file: PathBuf,
    pub(crate) named: bool,
    pub(crate) settings: Arc<Settings>,
    pub(crate) node: Node,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(configured: Configured) -> Result<()> {
    // Before anybody can call: whoever is answered may send one.
    let mut signals = Signals::new()?;
    let settings = Arc::clone(&configured.settings);
    let mut activated = Activated::take();
    let runtime = activated.or_unix("crust_ops", &settings.listen)?;
    let storage = if settings.crust_listen.as_os_str().is_empty() {
        None
    } else {
        Some(activated.or_unix("crust", &settings.crust_listen)?)
    };
    for unknown in activated.left() {
        tracing::warn!("{unknown}");
    }
    let metrics = Arc::new(Metrics::new());
    let (nodes, node) = watch::channel(configured.node.clone());
    let (loaded, current) = watch::channel(Arc::clone(&settings));
    Processes::adopt().context("prctl(PR_SET_CHILD_SUBREAPER)")?;
    let processes = Processes::default();
    let shared = Shared {
        node: node.clone(),
        settings: current,
        volumes: Volumes::default(),
        asked: Volumes::default(),
        processes: processes.clone(),
        metrics: Arc::clone(&metrics),
    };
    let calls = Calls::new(Arc::clone(&metrics), settings.max_calls);
    let ended = calls.clone();
    let (ending, end) = watch::channel(false);
    let mut servers = JoinSet::new();
    let mut reporters = Vec::new();
    let service = RuntimeServer::new(RuntimeService(shared.clone()));
    let service = service.max_decoding_message_size(settings.max_message);
    let routes = described(Routes::new(service), RUNTIME, &mut reporters).await?;
    let connections = Connections::new(RUNTIME, runtime);
    servers.spawn(server(
        routes,
        connections,
        calls.clone(),
        settings.max_streams,
        end.clone(),
    ));
    if let Some(listener) = storage {
        let service = StorageServer::new(StorageService(shared));
        let service = service.max_decoding_message_size(settings.max_message);
        let routes = described(Routes::new(service), STORAGE, &mut reporters).await?;
        let connections = Connections::new(STORAGE, listener);
        servers.spawn(server(
            routes,
            connections,
            calls,
            settings.max_streams,
            end,
        ));
    }
    if let Some(address) = settings.metrics().map_err(anyhow::Error::msg)? {
        let listener = MetricsListener::new(&address).await?;
        tokio::spawn(metrics::serve(listener, Arc::clone(&metrics), node.clone()));
    }
    tokio::spawn(reconcile(loaded.subscribe(), node, metrics));
    tell_systemd(&[NotifyState::Ready]);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %settings.listen.display(), "serves");
    loop {
        tokio::select! {
            _ = signals.reload.recv() => reload(&configured, &loaded, &nodes),
            name = Signals::end(&mut signals.terminate, &mut signals.interrupt) => {
                tracing::info!("{name}: finishes what is under way");
                break;
            }
            Some(ended) = servers.join_next() => ended??,
        }
    }
    tell_systemd(&[NotifyState::Stopping]);
    let drained = drain(servers, &ended, &ending, &mut reporters).await;
    // Whose answers nobody waits for any more; the runtime's end would come before theirs.
    processes.end().await;
    drained
}

/// Lets calls under way come to their end, and their callers hear of it.
async fn drain(
    mut servers: JoinSet<Result<()>>,
    calls: &Calls,
    ending: &watch::Sender<bool>,
    reporters: &mut [(HealthReporter, &'static str)],
) -> Result<()> {
    for (reporter, service) in reporters {
        let not = ServingStatus::NotServing;
        reporter.set_service_status(*service, not).await;
        // Whoever watches is told so and no more, for a watch is no call to wait for.
        reporter.clear_service_status(service).await;
        reporter.set_service_status(*service, not).await;
    }
    // Connections are there until then: whoever calls is told.
    if tokio::time::timeout(DRAIN, calls.end()).await.is_err() {
        tracing::warn!("calls under way were cut off after {} s", DRAIN.as_secs());
    }
    ending.send_replace(true);
    let parted = async {
        while let Some(ended) = servers.join_next().await {
            ended??;
        }
        Ok(())
    };
    // One that is stopped never hears of it.
    tokio::time::timeout(PARTING, parted)
        .await
        .unwrap_or(Ok(()))
}

/// A service's routes, with its health and its description.
async fn described(
    routes: Routes,
    name: &'static str,
    reporters: &mut Vec<(HealthReporter, &'static str)>,
) -> Result<Routes> {
    let (reporter, health) = tonic_health::server::health_reporter();
    for service in [name, ""] {
        reporter
            .set_service_status(service, ServingStatus::Serving)
            .await;
        reporters.push((reporter.clone(), service));
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(crust_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .with_service_name(name)
        .with_service_name("grpc.health.v1.Health")
        .build_v1()
        .context("reflection")?;
    Ok(routes.add_service(health).add_service(reflection))
}

async fn server(
    routes: Routes,
    connections: Connections<UnixListener>,
    calls: Calls,
    max_streams: u32,
    mut end: watch::Receiver<bool>,
) -> Result<()> {
    let ended = async move {
        // Whoever would say so is gone.
        let _ = end.wait_for(|end| *end).await;
    };
    let server = Server::builder()
        .max_concurrent_streams(max_streams)
        .layer(calls)
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, ended);
    server.await.context("gRPC server")
}

/// Removes on a timer what was missed by those who should have.
async fn reconcile(
    mut settings: watch::Receiver<Arc<Settings>>,
    node: watch::Receiver<Node>,
    metrics: Arc<Metrics>,
) {
    loop {
        let interval = settings.borrow_and_update().reconcile_interval;
        let pause = async {
            match interval {
                0 => std::future::pending().await,
                seconds => tokio::time::sleep(Duration::from_secs(seconds)).await,
            }
        };
        tokio::select! {
            changed = settings.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            () = pause => {}
        }
        let node = node.borrow().clone();
        match node.reconcile().await {
            Ok(()) => metrics.reconciled("ok"),
            Err(error) => {
                metrics.reconciled("error");
                tracing::warn!("reconciliation: {error}");
            }
        }
    }
}

/// SIGHUP: what can change while it serves does; a mistake changes nothing.
fn reload(
    configured: &Configured,
    settings: &watch::Sender<Arc<Settings>>,
    nodes: &watch::Sender<Node>,
) {
    let loaded = Settings::load(&configured.file, configured.named)
        .and_then(|settings| Ok((settings.runtimes()?, settings)));
    match loaded {
        Err(error) => tracing::error!("not reloaded: {error}"),
        Ok((runtimes, loaded)) => {
            let before = settings.borrow().clone();
            for (key, changed) in before.fixed_changes(&loaded) {
                if changed {
                    tracing::warn!("{key} changes with a restart only");
                }
            }
            nodes.send_replace(configured.node.with(runtimes));
            settings.send_replace(Arc::new(loaded));
            tracing::info!("reloaded");
        }
    }
}

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let of = |kind| signal(kind).context("signal handler");
        Ok(Self {
            reload: of(SignalKind::hangup())?,
            terminate: of(SignalKind::terminate())?,
            interrupt: of(SignalKind::interrupt())?,
        })
    }

    async fn end(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    }
}

/// Where systemd started us; elsewhere nobody listens.
fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("sd_notify: {error}");
    }
}

//! Runs the daemon: opens its sockets, serves, reloads, reconciles, and shuts down.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_server::{
    RuntimeAssistedStorageManagementServer as StorageServer, SERVICE_NAME as STORAGE,
};
use crust_proto::v1::runtime_server::{RuntimeServer, SERVICE_NAME as RUNTIME};
use crust_serve::http::Listener;
use crust_serve::listen::{ActivatedSockets, Connections};
use crust_serve::process::{SignalEvent, Signals, notify_ready, notify_stopping};
use crust_serve::{KeyedLocks, ServerLimits, Servers};
use crust_volume::ReconcileReport;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::service::Routes;

use crate::DAEMON;
use crate::call_error::CallError;
use crate::cli::CliRuns;
use crate::metrics::{self, Metrics};
use crate::node::StagingNode;
use crate::services::{RuntimeService, ServiceState, StorageService};
use crate::settings::Settings;

/// The settings with their file, and the node that they configure.
#[derive(Debug)]
pub(crate) struct DaemonConfig {
    pub(crate) file: PathBuf,
    /// Whether the command line names the file. A missing file is an error then.
    pub(crate) is_explicit: bool,
    pub(crate) settings: Arc<Settings>,
    pub(crate) node: StagingNode,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn serve(configured: DaemonConfig) -> Result<()> {
    // Set up before the sockets, because a client may send a signal once it has been answered.
    let mut signals = Signals::new()?;
    let settings = Arc::clone(&configured.settings);
    let sockets = Sockets::open(&settings).await?;
    let runs = CliRuns::default();
    let metrics = Arc::new(Metrics::new());
    let (nodes, node) = watch::channel(configured.node.clone());
    let (loaded, current) = watch::channel(Arc::clone(&settings));
    let shared = ServiceState {
        node: node.clone(),
        settings: current,
        change_locks: KeyedLocks::default(),
        query_locks: KeyedLocks::default(),
        runs: runs.clone(),
        metrics: Arc::clone(&metrics),
    };
    let limits = ServerLimits {
        connections: settings.max_connections,
        calls: settings.max_calls,
        streams: settings.max_streams,
    };
    let mut servers = Servers::new(&DAEMON, limits, metrics.clone());
    let service = RuntimeServer::new(RuntimeService(shared.clone()))
        .max_decoding_message_size(settings.max_message);
    let connections = Connections::new(RUNTIME, sockets.runtime);
    servers
        .add(&[RUNTIME], Routes::new(service), connections)
        .await?;
    if let Some(listener) = sockets.storage {
        let service = StorageServer::new(StorageService(shared))
            .max_decoding_message_size(settings.max_message);
        let connections = Connections::new(STORAGE, listener);
        servers
            .add(&[STORAGE], Routes::new(service), connections)
            .await?;
    }
    if let Some(listener) = sockets.metrics {
        tokio::spawn(metrics::serve(listener, Arc::clone(&metrics), node.clone()));
    }
    tokio::spawn(reconcile(loaded.subscribe(), node, metrics));
    notify_ready();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %settings.listen.display(), "serving");
    loop {
        tokio::select! {
            event = signals.next() => match event {
                SignalEvent::Reload => reload(&configured, &loaded, &nodes),
                SignalEvent::Terminate(name) => {
                    tracing::info!("{name}: shutting down: waiting for calls in progress");
                    break;
                }
            },
            failed = servers.wait_for_failure() => return Err(failed.into()),
        }
    }
    notify_stopping();
    let drain = Duration::from_secs(loaded.borrow().drain_timeout);
    let drained = servers.shut_down(drain).await;
    // After all calls have ended: no caller waits for the answers of these programs any more.
    runs.end().await;
    Ok(drained?)
}

/// The sockets of the daemon. The daemon fails to start if it can't open one of its sockets.
struct Sockets {
    runtime: UnixListener,
    storage: Option<UnixListener>,
    metrics: Option<Listener>,
}

impl Sockets {
    async fn open(settings: &Settings) -> Result<Self> {
        let mut activated = ActivatedSockets::take(&DAEMON);
        let runtime = activated.take_or_bind("crust_ops", &settings.listen)?;
        let storage = match &settings.crust_listen {
            off if off.as_os_str().is_empty() => None,
            path => Some(activated.take_or_bind("crust", path)?),
        };
        let metrics = match settings.metrics().map_err(anyhow::Error::msg)? {
            None => None,
            Some(address) => Some(metrics::listen(&address, &settings.metrics_hosts).await?),
        };
        for unknown in activated.unserved() {
            tracing::warn!("{unknown}");
        }
        Ok(Self {
            runtime,
            storage,
            metrics,
        })
    }
}

/// Reconciles at regular intervals, which removes stale state that hooks and callers left behind.
async fn reconcile(
    mut settings: watch::Receiver<Arc<Settings>>,
    node: watch::Receiver<StagingNode>,
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
        let (node, runtime) = (node.borrow().clone(), settings.borrow().runtime.clone());
        let reconciled = node.reconcile(runtime).await;
        metrics.count_reconciliation(reconciled.as_ref().ok());
        log_report(reconciled);
    }
}

/// Logs the numbers of a reconciliation. The removed items have been logged one by one.
fn log_report(reconciled: Result<ReconcileReport, CallError>) {
    let report = match reconciled {
        Ok(report) => report,
        Err(error) => return tracing::warn!("reconciliation failed: {error}"),
    };
    let (removed, left) = (
        report.removed.len(),
        report.left.len() + report.failed.len(),
    );
    let failed = report.into_result().err();
    let failed = failed.map_or_else(String::new, |error| format!(": {error}"));
    match (removed, left) {
        (0, 0) => tracing::debug!("reconciliation: removed 0, left 0"),
        _ if failed.is_empty() => tracing::info!("reconciliation: removed {removed}, left {left}"),
        _ => tracing::warn!("reconciliation: removed {removed}, left {left}{failed}"),
    }
}

/// Reloads the settings on SIGHUP. Those that can change while the daemon serves are applied; an invalid file changes
/// nothing.
fn reload(
    configured: &DaemonConfig,
    settings: &watch::Sender<Arc<Settings>>,
    nodes: &watch::Sender<StagingNode>,
) {
    let loaded = Settings::load(&configured.file, configured.is_explicit)
        .and_then(|settings| Ok((settings.runtime_config()?, settings)));
    match loaded {
        Err(error) => tracing::error!("not reloaded: {error}"),
        Ok((config, loaded)) => {
            for (key, changed) in configured.settings.restart_changes(&loaded) {
                if changed {
                    tracing::warn!("{key} only changes with a restart; hint: restart crust_ops");
                }
            }
            nodes.send_replace(configured.node.with_config(config));
            settings.send_replace(Arc::new(loaded));
            tracing::info!("reloaded");
        }
    }
}

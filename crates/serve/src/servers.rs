//! The gRPC servers of a daemon: one for each socket, with health and reflection.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::call::{CallObserver, Calls};
use crate::daemon::Daemon;
use crate::listen::{
    Clients, ConnectionLimits, ConnectionSlots, Connections, PING_INTERVAL, PING_TIMEOUT,
};

/// The longest time that shutdown waits for clients to close their connections. A client that is stopped never closes
/// its connection.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The maximum size of a request's headers in bytes (`SETTINGS_MAX_HEADER_LIST_SIZE` in RFC 9113, section 6.5.2). It is
/// the same as in gRPC's C core.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// The default of [`ServerLimits::connections`]. kubelet and each CSI sidecar have one or two connections.
pub const DEFAULT_MAX_CONNECTIONS: usize = 512;

/// Limits of a daemon's gRPC servers together.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections on all sockets; further ones are closed. At most half of the process's limit on descriptors is used.
    pub connections: usize,
    /// Calls in progress on all connections; further ones fail with `RESOURCE_EXHAUSTED`.
    pub calls: usize,
    /// Calls in progress on one connection; further ones wait.
    pub streams: u32,
}

/// The failure of a gRPC server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the gRPC server failed")]
    Server(#[from] tonic::transport::Error),
    /// The task of a server panicked.
    #[error("the gRPC server failed")]
    Task(#[from] JoinError),
    /// A server ended without being shut down.
    #[error("a gRPC server ended unexpectedly")]
    Ended,
    #[error(
        "cannot duplicate the socket of {service}: fcntl(F_DUPFD_CLOEXEC): {source}; hint: raise LimitNOFILE= of the systemd unit, or ulimit -n"
    )]
    DuplicateSocket {
        /// The name of the gRPC service.
        service: &'static str,
        source: io::Error,
    },
    #[error("cannot build the gRPC reflection service")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The gRPC servers of a daemon.
#[derive(Debug)]
pub struct Servers {
    daemon: &'static Daemon,
    tasks: JoinSet<Result<(), ServeError>>,
    /// The health of each service, and the name under which clients ask for it.
    reporters: Vec<(HealthReporter, &'static str)>,
    calls: Calls,
    max_streams: u32,
    slots: Arc<ConnectionSlots>,
    /// Keeps the sockets listening until all clients have disconnected. A call whose caller has hung up may still be
    /// carried out after the other calls have ended. A client whose connection is refused must be able to conclude that
    /// the daemon does nothing any more.
    listening: Vec<OwnedFd>,
    shutdown: watch::Sender<bool>,
}

impl Servers {
    /// Returns a set without servers. [`Self::add`] adds them.
    #[must_use]
    pub fn new(
        daemon: &'static Daemon,
        limits: ServerLimits,
        observer: Arc<dyn CallObserver>,
    ) -> Self {
        Self {
            daemon,
            tasks: JoinSet::new(),
            reporters: Vec::new(),
            calls: Calls::new(daemon, observer, limits.calls),
            max_streams: limits.streams,
            slots: Arc::new(ConnectionSlots::new(ConnectionLimits::with_process_limit(
                limits.connections,
            ))),
            listening: Vec::new(),
            shutdown: watch::Sender::new(false),
        }
    }

    /// Adds a server for a socket and starts it. `names` are the names of its services, for health and reflection.
    pub async fn add(
        &mut self,
        names: &[&'static str],
        routes: Routes,
        connections: Connections<UnixListener>,
    ) -> Result<(), ServeError> {
        let routes = self.add_health_and_reflection(names, routes).await?;
        let service = connections.name();
        let listening = connections
            .duplicate_socket()
            .map_err(|source| ServeError::DuplicateSocket { service, source })?;
        self.listening.push(listening);
        let mut shutdown = self.shutdown.subscribe();
        let until_shutdown = async move {
            // Fails if the sender was dropped. The server has to end then, too.
            let _ = shutdown.wait_for(|is_shut_down| *is_shut_down).await;
        };
        let clients = Clients::new(connections, Arc::clone(&self.slots));
        let server = Server::builder()
            .max_concurrent_streams(self.max_streams)
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .layer(self.calls.clone())
            .add_routes(routes)
            .serve_with_incoming_shutdown(clients, until_shutdown);
        self.tasks.spawn(async move { Ok(server.await?) });
        Ok(())
    }

    async fn add_health_and_reflection(
        &mut self,
        names: &[&'static str],
        routes: Routes,
    ) -> Result<Routes, ServeError> {
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(self.daemon.descriptors)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        for name in names.iter().copied().chain(["grpc.health.v1.Health"]) {
            reflection = reflection.with_service_name(name);
        }
        for name in names.iter().copied().chain([""]) {
            reporter
                .set_service_status(name, ServingStatus::Serving)
                .await;
            self.reporters.push((reporter.clone(), name));
        }
        Ok(routes
            .add_service(health)
            .add_service(reflection.build_v1()?))
    }

    /// Waits until a server fails. Never returns if there are no servers.
    pub async fn wait_for_failure(&mut self) -> ServeError {
        match self.tasks.join_next().await {
            Some(ended) => flatten(ended).err().unwrap_or(ServeError::Ended),
            None => std::future::pending().await,
        }
    }

    /// Ends the servers. New calls are refused, and calls in progress have `drain` to complete. Then clients get
    /// `DISCONNECT_TIMEOUT` to close their connections.
    pub async fn shut_down(mut self, drain: Duration) -> Result<(), ServeError> {
        for (reporter, service) in &mut self.reporters {
            let not_serving = ServingStatus::NotServing;
            reporter.set_service_status(*service, not_serving).await;
            // Ends the `Watch` calls after they have reported the status. They don't count as calls in progress.
            reporter.clear_service_status(service).await;
            reporter.set_service_status(*service, not_serving).await;
        }
        // Connections stay open meanwhile, so that new calls get an error that says that the daemon is shutting down.
        if timeout(drain, self.calls.drain()).await.is_err() {
            tracing::warn!("calls in progress were cut off after {} s", drain.as_secs());
        }
        self.shutdown.send_replace(true);
        let disconnected = async {
            while let Some(ended) = self.tasks.join_next().await {
                flatten(ended)?;
            }
            Ok(())
        };
        // A stopped client doesn't close its connection. That is not an error.
        timeout(DISCONNECT_TIMEOUT, disconnected)
            .await
            .unwrap_or(Ok(()))
    }
}

fn flatten(ended: Result<Result<(), ServeError>, JoinError>) -> Result<(), ServeError> {
    ended?
}

#[cfg(test)]
mod tests;

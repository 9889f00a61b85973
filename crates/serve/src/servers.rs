//! The gRPC servers: one a socket, each with its health and its description.

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
    ACKNOWLEDGEMENT, Clients, ConnectionLimits, ConnectionSlots, Connections, KEEP_ALIVE,
};

/// How long clients have to close their connections at the end. A client that is stopped never does.
const PARTING: Duration = Duration::from_secs(1);

/// The most bytes of a request's headers (RFC 9113, section 6.5.2): gRPC's C core accepts no more than
/// this either.
const HEADERS: u32 = 16 * 1024;

/// A number of connections for daemons without a setting for it: a node's kubelet and each CSI sidecar
/// have one or two.
pub const DEFAULT_MAX_CONNECTIONS: usize = 512;

/// Limits on what is under way at a time.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections in all, over all sockets; more are closed. There are fewer where the process may not
    /// have twice as many descriptors.
    pub connections: usize,
    /// Calls under way in all; more are told to try again.
    pub calls: usize,
    /// Calls under way on a connection; more wait.
    pub streams: u32,
}

/// A server can't start, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A server failed.
    #[error("gRPC server")]
    Server(#[from] tonic::transport::Error),
    /// A server's task did.
    #[error("gRPC server")]
    Task(#[from] JoinError),
    /// A server has ended before it was told to.
    #[error("a gRPC server has ended")]
    Ended,
    /// There is no second descriptor of its socket.
    #[error("fcntl(F_DUPFD_CLOEXEC)")]
    Socket(#[source] io::Error),
    /// The services can't be described.
    #[error("reflection")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The gRPC servers of a daemon.
#[derive(Debug)]
pub struct Servers {
    daemon: &'static Daemon,
    tasks: JoinSet<Result<(), ServeError>>,
    /// With the names that their health is asked by.
    reporters: Vec<(HealthReporter, &'static str)>,
    calls: Calls,
    max_streams: u32,
    slots: Arc<ConnectionSlots>,
    /// Sockets are listened on until clients have parted: a call that its caller has hung up on may still be carried
    /// out when the others have ended, and whoever finds nobody is to find nobody at work, but for the process's last
    /// moment.
    listening: Vec<OwnedFd>,
    end: watch::Sender<bool>,
}

impl Servers {
    /// None yet.
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
            slots: Arc::new(ConnectionSlots::new(ConnectionLimits::of_this_process(
                limits.connections,
            ))),
            listening: Vec::new(),
            end: watch::Sender::new(false),
        }
    }

    /// Serves services on a socket. `names` are the names of the services, for health and reflection.
    pub async fn add(
        &mut self,
        names: &[&'static str],
        routes: Routes,
        connections: Connections<UnixListener>,
    ) -> Result<(), ServeError> {
        let routes = self.described(names, routes).await?;
        let listening = connections.socket().map_err(ServeError::Socket)?;
        self.listening.push(listening);
        let mut end = self.end.subscribe();
        let ended = async move {
            // Whoever would say so is gone.
            let _ = end.wait_for(|end| *end).await;
        };
        let clients = Clients::new(connections, Arc::clone(&self.slots));
        let server = Server::builder()
            .max_concurrent_streams(self.max_streams)
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(ACKNOWLEDGEMENT))
            .http2_max_header_list_size(HEADERS)
            .layer(self.calls.clone())
            .add_routes(routes)
            .serve_with_incoming_shutdown(clients, ended);
        self.tasks.spawn(async move { Ok(server.await?) });
        Ok(())
    }

    async fn described(
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

    /// Waits until one of them fails.
    pub async fn wait_for_failure(&mut self) -> ServeError {
        match self.tasks.join_next().await {
            Some(ended) => flat(ended).err().unwrap_or(ServeError::Ended),
            None => std::future::pending().await,
        }
    }

    /// Lets calls under way come to their end, no longer than `drain`, and their callers hear of it.
    pub async fn shut_down(mut self, drain: Duration) -> Result<(), ServeError> {
        for (reporter, service) in &mut self.reporters {
            let not = ServingStatus::NotServing;
            reporter.set_service_status(*service, not).await;
            // Whoever watches is told so and no more, for a watch is no call to wait for.
            reporter.clear_service_status(service).await;
            reporter.set_service_status(*service, not).await;
        }
        // Connections are there until then: whoever calls is told.
        if timeout(drain, self.calls.end()).await.is_err() {
            tracing::warn!("calls under way were cut off after {} s", drain.as_secs());
        }
        self.end.send_replace(true);
        let parted = async {
            while let Some(ended) = self.tasks.join_next().await {
                flat(ended)?;
            }
            Ok(())
        };
        // One that is stopped never hears of it.
        timeout(PARTING, parted).await.unwrap_or(Ok(()))
    }
}

fn flat(ended: Result<Result<(), ServeError>, JoinError>) -> Result<(), ServeError> {
    ended?
}

#[cfg(test)]
mod tests;

//! Clients of a `crust.v1.Runtime`, each with its own connection.

use std::path::Path;
use std::time::Instant;

use crust_proto::v1::RuntimeStageVolumeRequest;
use crust_proto::v1::runtime_client::RuntimeClient;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// Clients that are connected to one server.
#[derive(Debug)]
pub(crate) struct Callers {
    runtime: Runtime,
    clients: Vec<RuntimeClient<Channel>>,
}

impl Callers {
    /// Connects `count` clients.
    pub(crate) fn connect(socket: &Path, count: usize) -> Self {
        // A single client does not need a second thread.
        let mut builder = match count {
            1 => Builder::new_current_thread(),
            _ => Builder::new_multi_thread(),
        };
        let runtime = builder.enable_all().build().expect("a tokio runtime");
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display()));
        let endpoint = endpoint.expect("a socket's path");
        let connect = || runtime.block_on(endpoint.connect()).expect("a server");
        let clients = (0..count).map(|_| RuntimeClient::new(connect())).collect();
        Self { runtime, clients }
    }

    /// Stages volumes with the first client, one after the other, and returns the time of each call in milliseconds.
    pub(crate) fn stage_in_turn(&self, requests: &[RuntimeStageVolumeRequest]) -> Vec<f64> {
        let mut client = self.clients[0].clone();
        self.runtime.block_on(async {
            let mut times = Vec::with_capacity(requests.len());
            for request in requests {
                let request = request.clone();
                let start = Instant::now();
                client.runtime_stage_volume(request).await.expect("staged");
                times.push(start.elapsed().as_secs_f64() * 1e3);
            }
            times
        })
    }

    /// Stages volumes with all clients at the same time, and returns the time until the last one is staged, in seconds.
    pub(crate) fn stage_concurrently(&self, requests: &[RuntimeStageVolumeRequest]) -> f64 {
        let shares = requests.chunks(requests.len().div_ceil(self.clients.len()));
        let shares: Vec<_> = shares.map(<[_]>::to_vec).collect();
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut calls = JoinSet::new();
            for (client, share) in self.clients.iter().zip(shares) {
                calls.spawn(stage_all(client.clone(), share));
            }
            calls.join_all().await;
        });
        start.elapsed().as_secs_f64()
    }
}

async fn stage_all(mut client: RuntimeClient<Channel>, requests: Vec<RuntimeStageVolumeRequest>) {
    for request in requests {
        client.runtime_stage_volume(request).await.expect("staged");
    }
}

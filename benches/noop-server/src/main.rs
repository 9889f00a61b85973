//! `noop-server SOCKET`: a `crust.v1.Runtime` that answers every stage with success and does nothing. It uses tonic as
//! `crust_ops` does, is built with the same profile, and has as many threads.

#![forbid(unsafe_code)]

use std::error::Error;

use crust_proto::v1::runtime_server::{Runtime, RuntimeServer};
use crust_proto::v1::{
    RuntimeExpandVolumeRequest, RuntimeExpandVolumeResponse, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimeStageVolumeRequest, RuntimeStageVolumeResponse,
    RuntimeUnstageVolumeRequest, RuntimeUnstageVolumeResponse,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

struct Noop;

#[tonic::async_trait]
impl Runtime for Noop {
    async fn runtime_stage_volume(
        &self,
        _request: Request<RuntimeStageVolumeRequest>,
    ) -> Result<Response<RuntimeStageVolumeResponse>, Status> {
        Ok(Response::new(RuntimeStageVolumeResponse::default()))
    }

    async fn runtime_unstage_volume(
        &self,
        _request: Request<RuntimeUnstageVolumeRequest>,
    ) -> Result<Response<RuntimeUnstageVolumeResponse>, Status> {
        Err(Status::unimplemented("nothing is staged"))
    }

    async fn runtime_get_volume_stats(
        &self,
        _request: Request<RuntimeGetVolumeStatsRequest>,
    ) -> Result<Response<RuntimeGetVolumeStatsResponse>, Status> {
        Err(Status::unimplemented("nothing is staged"))
    }

    async fn runtime_expand_volume(
        &self,
        _request: Request<RuntimeExpandVolumeRequest>,
    ) -> Result<Response<RuntimeExpandVolumeResponse>, Status> {
        Err(Status::unimplemented("nothing is staged"))
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let socket = std::env::args_os().nth(1);
    let socket = socket.ok_or("usage: noop-server SOCKET")?;
    let connections = UnixListenerStream::new(UnixListener::bind(socket)?);
    let server = Server::builder().add_service(RuntimeServer::new(Noop));
    Ok(server.serve_with_incoming(connections).await?)
}

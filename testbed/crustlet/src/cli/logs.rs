//! `crustlet logs`

use anyhow::Result;
use crust_proto::crustlet::v1::LogsRequest;

use super::args::Logs;
use super::client::Client;
use super::output::print;
use super::pod;

/// Shows what a container has written, byte for byte.
pub(super) async fn logs(asked: Logs, client: &Client) -> Result<()> {
    let request = LogsRequest {
        namespace: asked.namespace.namespace,
        pod: pod::name(&asked.pod)?.to_owned(),
        container: asked.container,
        follow: asked.follow,
        previous: asked.previous,
    };
    let mut told = client.logs(request).await?;
    while let Some(part) = told.next().await? {
        print(part.text)?;
    }
    Ok(())
}

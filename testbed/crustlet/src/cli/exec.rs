//! `crustlet exec`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::ExecRequest;

use super::args::Exec;
use super::client::Client;
use super::output::{print, tell};
use super::pod;

/// What `kubectl exec` can and this can't.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a command has neither standard input nor a terminal here, for CRI's ExecSync has none; hint: without -i and -t"
)]
pub(super) struct Interactive;

/// Runs a command in a container; its exit code is ours.
pub(super) async fn exec(asked: Exec, client: &Client) -> Result<ExitCode> {
    let request = ExecRequest {
        namespace: asked.namespace.namespace,
        pod: pod::name(&asked.pod)?.to_owned(),
        container: asked.container,
        command: asked.command,
        timeout_seconds: asked.timeout.map_or(0, seconds),
    };
    let ended = client.exec(request).await?;
    tell(ended.stderr);
    print(ended.stdout)?;
    // Of a shell's codes none is larger.
    let code = u8::try_from(ended.exit_code).unwrap_or(u8::MAX);
    Ok(ExitCode::from(code))
}

/// Whole ones, and not fewer than were asked for.
fn seconds(duration: Duration) -> i64 {
    let more = i64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX - 1) + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_one() {
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(30)), 30);
        assert_eq!(seconds(Duration::MAX), i64::MAX);
    }
}

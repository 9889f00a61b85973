//! `crustlet logs` and `crustlet exec`: the commands about a pod's container.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::{ExecRequest, LogsRequest};

use super::args::{Exec, Logs};
use super::client::Client;
use super::io::{print, tell};
use super::resource::{Resource, UnknownResource};
use crate::objects::Kind;

/// Prints what a container has written, byte for byte.
pub(super) async fn logs(asked: Logs, client: &Client) -> Result<()> {
    let request = LogsRequest {
        namespace: asked.of.namespace.namespace,
        pod: pod_name(&asked.of.pod)?.to_owned(),
        container: asked.of.container,
        follow: asked.follow,
        previous: asked.previous,
    };
    let mut told = client.logs(request).await?;
    while let Some(part) = told.next().await? {
        print(part.text)?;
    }
    Ok(())
}

/// A command that needs standard input or a terminal.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a command has neither standard input nor a terminal here, for CRI's ExecSync has none; hint: without -i and -t"
)]
pub(super) struct Interactive;

/// Runs a command in a container, and returns its exit code.
pub(super) async fn exec(asked: Exec, client: &Client) -> Result<ExitCode> {
    let request = ExecRequest {
        namespace: asked.of.namespace.namespace,
        pod: pod_name(&asked.of.pod)?.to_owned(),
        container: asked.of.container,
        command: asked.command,
        timeout_seconds: asked.timeout.map_or(0, seconds),
    };
    let ended = client.exec(request).await?;
    tell(ended.stderr);
    print(ended.stdout)?;
    // The codes of shells end there.
    let code = u8::try_from(ended.exit_code).unwrap_or(u8::MAX);
    Ok(ExitCode::from(code))
}

/// Returns a duration in seconds, rounded up.
fn seconds(duration: Duration) -> i64 {
    let more = i64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX - 1) + more
}

/// A word that names no pod.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum PodError {
    /// There is no such kind.
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    /// It is of another kind.
    #[error("{0:?} isn't a pod, and nothing else has containers")]
    Other(String),
}

/// Returns the name of `web` or `pod/web`.
fn pod_name(word: &str) -> Result<&str, PodError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Ok(word);
    };
    if kind.parse::<Resource>()? == Resource::Object(Kind::Pod) && !name.contains('/') {
        Ok(name)
    } else {
        Err(PodError::Other(word.to_owned()))
    }
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

    #[test]
    fn a_pod_is_named_with_its_kind_or_without() {
        assert_eq!(pod_name("web"), Ok("web"));
        assert_eq!(pod_name("pod/web"), Ok("web"));
        assert_eq!(pod_name("po/web"), Ok("web"));
        for word in ["pvc/web", "pod/web/app"] {
            assert_eq!(pod_name(word), Err(PodError::Other(word.to_owned())));
        }
        assert!(
            pod_name("web/app")
                .unwrap_err()
                .to_string()
                .contains("pods (po)")
        );
    }
}

//! Implements `crustlet logs` and `crustlet exec`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use crust_proto::crustlet::v1::{ExecRequest, LogsRequest};

use super::args::{ExecArgs, LogsArgs};
use super::client::Client;
use super::io::{eprint, print};
use super::resource::{Resource, UnknownResource};
use crate::objects::Kind;

/// Prints the logs of a container unchanged.
pub(super) async fn logs(args: LogsArgs, client: &Client) -> Result<()> {
    let request = LogsRequest {
        namespace: args.target.namespace.namespace,
        pod: pod_name(&args.target.pod)?.to_owned(),
        container: args.target.container,
        follow: args.follow,
        previous: args.previous,
    };
    let mut logs = client.logs(request).await?;
    while let Some(part) = logs.next().await? {
        print(part.text)?;
    }
    Ok(())
}

/// The error of `exec` with standard input or a terminal.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "exec supports neither standard input nor a terminal, because the CRI's ExecSync doesn't; hint: leave out -i and -t"
)]
pub(super) struct InteractiveExec;

/// Runs a command in a container, and returns its exit code.
pub(super) async fn exec(args: ExecArgs, client: &Client) -> Result<ExitCode> {
    let request = ExecRequest {
        namespace: args.target.namespace.namespace,
        pod: pod_name(&args.target.pod)?.to_owned(),
        container: args.target.container,
        command: args.command,
        timeout_seconds: args.timeout.map_or(0, whole_seconds),
    };
    let response = client.exec(request).await?;
    eprint(response.stderr);
    print(response.stdout)?;
    // Exit codes of processes are at most 255.
    let code = u8::try_from(response.exit_code).unwrap_or(u8::MAX);
    Ok(ExitCode::from(code))
}

/// Converts a duration to seconds, rounded up.
fn whole_seconds(duration: Duration) -> i64 {
    let fraction = i64::from(duration.subsec_nanos() > 0);
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX - 1) + fraction
}

/// The error of an argument that doesn't name a pod.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum PodError {
    #[error(transparent)]
    Unknown(#[from] UnknownResource),
    #[error("{0:?} is not a pod; only pods have containers")]
    NotAPod(String),
}

/// Returns the name of a pod that is written as `web` or `pod/web`.
fn pod_name(word: &str) -> Result<&str, PodError> {
    let Some((kind, name)) = word.split_once('/') else {
        return Ok(word);
    };
    if kind.parse::<Resource>()? == Resource::Object(Kind::Pod) && !name.contains('/') {
        Ok(name)
    } else {
        Err(PodError::NotAPod(word.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(30)), 30);
        assert_eq!(whole_seconds(Duration::MAX), i64::MAX);
    }

    #[test]
    fn a_pod_is_named_with_or_without_its_kind() {
        assert_eq!(pod_name("web"), Ok("web"));
        assert_eq!(pod_name("pod/web"), Ok("web"));
        assert_eq!(pod_name("po/web"), Ok("web"));
        for word in ["pvc/web", "pod/web/app"] {
            assert_eq!(pod_name(word), Err(PodError::NotAPod(word.to_owned())));
        }
        assert!(
            pod_name("web/app")
                .unwrap_err()
                .to_string()
                .contains("pods (po)")
        );
    }
}

//! Waits for pods to run, and prints their events meanwhile.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use crust_proto::crustlet::v1::{Event, EventsRequest};
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize as _;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::progress::Progress;
use crate::cli::age::moment;
use crate::cli::client::{Client, ClientError};
use crate::cli::events::type_of;
use crate::cli::io::{print, tell};
use crate::cli::print::pods;
use crate::cli::table::Table;
use crate::objects::{Kind, Name};

/// How often it is looked how far pods are. Events tell what they tell; what a pod is says its status.
const EVERY: Duration = Duration::from_millis(200);

/// Pods that don't run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FollowError {
    /// They never will.
    #[error("{}", .0.join("; "))]
    Failed(Vec<String>),
    /// They may yet.
    #[error("after {}: {}", humantime::format_duration(*after), waits.join("; "))]
    Waited {
        /// The reason of each.
        waits: Vec<String>,
        /// How long was waited.
        after: Duration,
    },
}

/// A pod that is waited for.
#[derive(Debug)]
struct Followed {
    name: Name,
    /// The UID of the pod that was last seen.
    uid: Option<String>,
    progress: Progress,
    /// STATUS in its table.
    status: String,
    /// The last warning.
    warning: Option<String>,
}

impl Followed {
    fn new(name: Name) -> Self {
        Self {
            name,
            uid: None,
            progress: Progress::Waits,
            status: "Pending".to_owned(),
            warning: None,
        }
    }

    /// Takes the state of the pod. `None` is a pod that doesn't exist.
    fn see(&mut self, pod: Option<&Pod>, now: SystemTime) {
        match pod {
            Some(pod) => {
                self.uid = Some(pod.metadata.uid.clone().unwrap_or_default());
                self.progress = Progress::of(pod);
                self.status = pods::summary(pod, now).status;
            }
            // One that was never seen is still to come.
            None if self.uid.is_none() => {}
            None => self.progress = Progress::Failed("it was deleted".to_owned()),
        }
    }

    fn is_about(&self, event: &Event) -> bool {
        let uid = self.uid.as_deref().unwrap_or_default();
        let is_same = uid.is_empty() || event.uid.is_empty() || event.uid == uid;
        event.namespace == self.name.namespace && event.name == self.name.name && is_same
    }

    fn waits(&self) -> String {
        let why = self.warning.as_deref().unwrap_or(&self.status);
        format!("pod/{} still waits: {why}", self.name.name)
    }
}

/// Until each runs or has ended. Events since a moment are told.
pub(super) async fn follow(
    client: &Client,
    pods: Vec<Name>,
    since: SystemTime,
    timeout: Option<Duration>,
) -> Result<()> {
    let mut pods: Vec<Followed> = pods.into_iter().map(Followed::new).collect();
    look(client, &mut pods).await?;
    let mut events = client.events(request()).await?;
    let mut table = Table::default();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let started = Instant::now();
    while pods.iter().any(|it| it.progress == Progress::Waits) {
        tokio::select! {
            // What happened is told before what came of it.
            biased;
            event = events.next() => {
                let event = event?.ok_or(ClientError::Ended)?;
                note(&mut pods, &event, since, &mut table);
            }
            _ = ticks.tick() => look(client, &mut pods).await?,
            () = until(started, timeout) => break,
        }
    }
    Ok(outcome(&pods, timeout)?)
}

fn request() -> EventsRequest {
    EventsRequest {
        watch: true,
        kind: Kind::Pod.as_str().to_owned(),
        ..EventsRequest::default()
    }
}

async fn until(started: Instant, timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => sleep_until(started + timeout).await,
        None => std::future::pending().await,
    }
}

async fn look(client: &Client, pods: &mut [Followed]) -> Result<()> {
    for pod in pods {
        if pod.progress != Progress::Waits {
            continue;
        }
        let Name { namespace, name } = &pod.name;
        let found = client.list(Kind::Pod.as_str(), namespace, name).await?;
        let found = found.first().map(Pod::deserialize).transpose();
        let found = found.map_err(ClientError::Document)?;
        pod.see(found.as_ref(), SystemTime::now());
        match pod.progress {
            Progress::Runs => print(format!("pod/{} running\n", pod.name.name))?,
            Progress::Succeeded => print(format!("pod/{} succeeded\n", pod.name.name))?,
            Progress::Waits | Progress::Failed(_) => {}
        }
    }
    Ok(())
}

fn note(pods: &mut [Followed], event: &Event, since: SystemTime, table: &mut Table) {
    let Some(pod) = pods.iter_mut().find(|it| it.is_about(event)) else {
        return;
    };
    let kind = type_of(event);
    if kind == "Warning" {
        pod.warning = Some(format!("{}: {}", event.reason, event.message));
    }
    if moment(event.last_ms) < since {
        return;
    }
    let again = match event.count {
        0 | 1 => String::new(),
        count => format!(" (x{count})"),
    };
    let row = [
        kind.to_owned(),
        event.reason.clone(),
        format!("pod/{}", event.name),
        event.message.trim().to_owned() + &again,
    ];
    tell(table.lines(&[row.to_vec()]));
}

fn outcome(pods: &[Followed], timeout: Option<Duration>) -> Result<(), FollowError> {
    let waits = pods.iter().filter(|it| it.progress == Progress::Waits);
    let waits: Vec<String> = waits.map(Followed::waits).collect();
    let failed = pods.iter().filter_map(|pod| match &pod.progress {
        Progress::Failed(why) => Some(format!("pod/{} failed: {why}", pod.name.name)),
        _ => None,
    });
    let mut failed: Vec<String> = failed.collect();
    match timeout {
        Some(after) if !waits.is_empty() && failed.is_empty() => {
            Err(FollowError::Waited { waits, after })
        }
        _ if failed.is_empty() => Ok(()),
        _ => {
            failed.extend(waits);
            Err(FollowError::Failed(failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_proto::crustlet::v1::event::Type;
    use serde_json::json;

    use super::*;

    fn followed(uid: &str, progress: Progress) -> Followed {
        Followed {
            uid: Some(uid.to_owned()),
            progress,
            ..Followed::new(Name::new("default", "web"))
        }
    }

    fn event(uid: &str, kind: Type) -> Event {
        Event {
            r#type: kind.into(),
            reason: "FailedMount".to_owned(),
            message: "no driver".to_owned(),
            kind: "Pod".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: uid.to_owned(),
            ..Event::default()
        }
    }

    #[test]
    fn a_pod_that_still_waits_tells_its_own_last_warning() {
        let mut pods = [followed("uid-1", Progress::Waits)];
        pods[0].status = "ContainerCreating".to_owned();
        let after = Duration::from_secs(90);
        let told = |pods: &[Followed]| outcome(pods, Some(after)).unwrap_err().to_string();
        assert_eq!(
            told(&pods),
            "after 1m 30s: pod/web still waits: ContainerCreating"
        );
        let now = SystemTime::now();
        let mut note = |event: &Event| note(&mut pods, event, now, &mut Table::default());
        note(&event("uid-1", Type::Warning));
        note(&event("uid-1", Type::Normal));
        let other = Event {
            message: "of another".to_owned(),
            ..event("uid-2", Type::Warning)
        };
        note(&other);
        assert_eq!(
            told(&pods),
            "after 1m 30s: pod/web still waits: FailedMount: no driver"
        );
    }

    #[test]
    fn one_that_failed_fails_all() {
        let pods = [
            followed("a", Progress::Runs),
            followed("b", Progress::Failed("it was deleted".to_owned())),
        ];
        let error = outcome(&pods, None).unwrap_err().to_string();
        assert_eq!(error, "pod/web failed: it was deleted");
        assert_eq!(outcome(&pods[..1], None), Ok(()));
    }

    #[test]
    fn a_pod_that_was_seen_and_is_gone_was_deleted() {
        let now = SystemTime::now();
        let mut pod = Followed::new(Name::new("default", "web"));
        pod.see(None, now);
        assert_eq!(pod.progress, Progress::Waits, "it may be still to come");
        let document = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "uid-1"},
        });
        let there = Pod::deserialize(document).unwrap();
        pod.see(Some(&there), now);
        assert_eq!(pod.progress, Progress::Waits);
        pod.see(None, now);
        let deleted = Progress::Failed("it was deleted".to_owned());
        assert_eq!(pod.progress, deleted);
    }
}

//! Waits until pods are running, prints their events meanwhile, and shows on a terminal what the pods wait for.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use crust_proto::crustlet::v1::{Event, EventsRequest};
use crust_state::StatusLine;
use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize as _;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::progress::Progress;
use crate::cli::age::from_millis;
use crate::cli::client::{Client, ClientError, Stream};
use crate::cli::events::event_type;
use crate::cli::io::{eprint, print};
use crate::cli::print::pods;
use crate::cli::table::Table;
use crate::objects::{Kind, Name};

/// The interval at which the pods are listed. Events are only printed; the status of a pod decides its progress.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The reason why pods aren't running.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FollowError {
    /// At least one pod has failed.
    #[error("{}", .0.join("; "))]
    Failed(Vec<String>),
    /// The timeout passed. The pods may run later.
    #[error("timed out after {}: {}", humantime::format_duration(*timeout), waiting.join("; "))]
    Timeout {
        /// The reason why each pod isn't running.
        waiting: Vec<String>,
        timeout: Duration,
    },
}

/// A pod that the command waits for.
#[derive(Debug)]
struct FollowedPod {
    name: Name,
    /// The UID of the pod when it was last listed. `None` if it never was.
    uid: Option<String>,
    progress: Progress,
    /// The column STATUS in the table of pods.
    status: String,
    /// The last warning, with its reason.
    warning: Option<String>,
}

impl FollowedPod {
    fn new(name: Name) -> Self {
        Self {
            name,
            uid: None,
            progress: Progress::Waiting,
            status: "Pending".to_owned(),
            warning: None,
        }
    }

    /// Updates the progress. `None` means that the pod doesn't exist.
    fn update(&mut self, pod: Option<&Pod>, now: SystemTime) {
        match pod {
            Some(pod) => {
                self.uid = Some(pod.metadata.uid.clone().unwrap_or_default());
                self.progress = Progress::from_pod(pod);
                self.status = pods::summary(pod, now).status;
            }
            // A pod that was never listed may not have been created yet.
            None if self.uid.is_none() => {}
            None => self.progress = Progress::Failed("the pod was deleted".to_owned()),
        }
    }

    fn is_regarding(&self, event: &Event) -> bool {
        let uid = self.uid.as_deref().unwrap_or_default();
        let is_same = uid.is_empty() || event.uid.is_empty() || event.uid == uid;
        event.namespace == self.name.namespace && event.name == self.name.name && is_same
    }

    fn waiting_reason(&self) -> String {
        let cause = self.warning.as_deref().unwrap_or(&self.status);
        format!("pod/{} is not running yet: {cause}", self.name.name)
    }
}

/// Waits until each pod is running or has ended. Prints events that happened after `since`.
pub(super) async fn follow(
    client: &Client,
    pods: Vec<Name>,
    since: SystemTime,
    timeout: Option<Duration>,
) -> Result<()> {
    let started = Instant::now();
    let mut follower = Follower::new(client, pods, since).await?;
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while follower.is_waiting() {
        tokio::select! {
            // Events are printed before the status that they caused.
            biased;
            event = follower.next_event() => follower.handle_event(&event?),
            _ = ticks.tick() => {
                follower.poll(client).await?;
                follower.show_status(started.elapsed());
            }
            () = timed_out(started, timeout) => break,
        }
    }
    follower.status_line.clear();
    Ok(result(&follower.pods, timeout)?)
}

/// The pods that the command waits for, and their events.
struct Follower {
    pods: Vec<FollowedPod>,
    events: Stream<Event>,
    /// The last event that was received, of any pod.
    last_event: Option<Event>,
    /// Earlier events are not printed.
    since: SystemTime,
    table: Table,
    status_line: StatusLine,
}

impl Follower {
    async fn new(client: &Client, pods: Vec<Name>, since: SystemTime) -> Result<Self> {
        let mut follower = Self {
            pods: pods.into_iter().map(FollowedPod::new).collect(),
            events: client.events(request(true)).await?,
            last_event: None,
            since,
            table: Table::default(),
            status_line: StatusLine::new(),
        };
        follower.poll(client).await?;
        Ok(follower)
    }

    fn is_waiting(&self) -> bool {
        let mut pods = self.pods.iter();
        pods.any(|pod| pod.progress == Progress::Waiting)
    }

    async fn next_event(&mut self) -> Result<Event> {
        let event = self.events.next().await?;
        Ok(event.ok_or(ClientError::EventsEnded)?)
    }

    /// Prints an event if it is of one of the pods.
    fn handle_event(&mut self, event: &Event) {
        if let Some(line) = record_event(&mut self.pods, event, self.since, &mut self.table) {
            self.status_line.clear();
            eprint(line);
        }
        self.last_event = Some(event.clone());
    }

    /// Updates the pods that were waiting, and prints those that are running now or have succeeded. Their events are
    /// printed first.
    async fn poll(&mut self, client: &Client) -> Result<()> {
        let mut lines = Vec::new();
        let waiting = self.pods.iter_mut();
        for pod in waiting.filter(|pod| pod.progress == Progress::Waiting) {
            let Name { namespace, name } = &pod.name;
            let found = client.list(Kind::Pod.as_str(), namespace, name).await?;
            let found = found.first().map(Pod::deserialize).transpose();
            let found = found.map_err(ClientError::Document)?;
            pod.update(found.as_ref(), SystemTime::now());
            let outcome = match pod.progress {
                Progress::Running => "running",
                Progress::Succeeded => "succeeded",
                Progress::Waiting | Progress::Failed(_) => continue,
            };
            lines.push(format!("pod/{} {outcome}\n", pod.name.name));
        }
        if !lines.is_empty() {
            self.catch_up(client).await?;
            self.status_line.clear();
            print(lines.concat())?;
        }
        Ok(())
    }

    /// Receives the events that the agent has recorded so far. The stream can be behind the status of the pods, because
    /// the status comes from other calls.
    async fn catch_up(&mut self, client: &Client) -> Result<()> {
        let mut recorded = client.events(request(false)).await?;
        let mut latest = None;
        while let Some(event) = recorded.next().await? {
            latest = Some(event);
        }
        // The stream has each event that the agent recorded, in the same order.
        while latest.is_some() && self.last_event != latest {
            let event = self.next_event().await?;
            self.handle_event(&event);
        }
        Ok(())
    }

    fn show_status(&mut self, elapsed: Duration) {
        let waiting = self.pods.iter();
        let waiting: Vec<String> = waiting
            .filter(|pod| pod.progress == Progress::Waiting)
            .map(FollowedPod::waiting_reason)
            .collect();
        if !waiting.is_empty() {
            let seconds = elapsed.as_secs();
            let text = format!("{seconds}s: {}", waiting.join("; "));
            self.status_line.show(&text);
        }
    }
}

/// A request for the events of all pods. With `watch`, the stream goes on with new events.
fn request(watch: bool) -> EventsRequest {
    EventsRequest {
        watch,
        kind: Kind::Pod.as_str().to_owned(),
        ..EventsRequest::default()
    }
}

/// Returns when the timeout has passed since `started`. Never returns without a timeout.
async fn timed_out(started: Instant, timeout: Option<Duration>) {
    match timeout {
        Some(timeout) => sleep_until(started + timeout).await,
        None => std::future::pending().await,
    }
}

/// Remembers an event of one of the pods if it is a warning. Returns its line if it happened after `since`.
fn record_event(
    pods: &mut [FollowedPod],
    event: &Event,
    since: SystemTime,
    table: &mut Table,
) -> Option<String> {
    let pod = pods.iter_mut().find(|pod| pod.is_regarding(event))?;
    let kind = event_type(event);
    if kind == "Warning" {
        pod.warning = Some(format!("{}: {}", event.reason, event.message));
    }
    if from_millis(event.last_ms) < since {
        return None;
    }
    let repeated = match event.count {
        0 | 1 => String::new(),
        count => format!(" (x{count})"),
    };
    let row = [
        kind.to_owned(),
        event.reason.clone(),
        format!("pod/{}", event.name),
        event.message.trim().to_owned() + &repeated,
    ];
    Some(table.lines(&[row.to_vec()]))
}

fn result(pods: &[FollowedPod], timeout: Option<Duration>) -> Result<(), FollowError> {
    let waiting = pods.iter().filter(|pod| pod.progress == Progress::Waiting);
    let waiting: Vec<String> = waiting.map(FollowedPod::waiting_reason).collect();
    let failed = pods.iter().filter_map(|pod| match &pod.progress {
        Progress::Failed(cause) => Some(format!("pod/{} failed: {cause}", pod.name.name)),
        _ => None,
    });
    let mut failed: Vec<String> = failed.collect();
    match timeout {
        Some(timeout) if !waiting.is_empty() && failed.is_empty() => {
            Err(FollowError::Timeout { waiting, timeout })
        }
        _ if failed.is_empty() => Ok(()),
        _ => {
            failed.extend(waiting);
            Err(FollowError::Failed(failed))
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_proto::crustlet::v1::event::Type;
    use serde_json::json;

    use super::*;

    fn followed(uid: &str, progress: Progress) -> FollowedPod {
        FollowedPod {
            uid: Some(uid.to_owned()),
            progress,
            ..FollowedPod::new(Name::new("default", "web"))
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
    fn a_timeout_reports_the_last_warning_of_the_pod() {
        let mut pods = [followed("uid-1", Progress::Waiting)];
        pods[0].status = "ContainerCreating".to_owned();
        let timeout = Duration::from_secs(90);
        let error = |pods: &[FollowedPod]| result(pods, Some(timeout)).unwrap_err().to_string();
        assert_eq!(
            error(&pods),
            "timed out after 1m 30s: pod/web is not running yet: ContainerCreating"
        );
        let now = SystemTime::now();
        let mut record = |event: &Event| record_event(&mut pods, event, now, &mut Table::default());
        record(&event("uid-1", Type::Warning));
        record(&event("uid-1", Type::Normal));
        let of_another_pod = Event {
            message: "of another pod".to_owned(),
            ..event("uid-2", Type::Warning)
        };
        record(&of_another_pod);
        assert_eq!(
            error(&pods),
            "timed out after 1m 30s: pod/web is not running yet: FailedMount: no driver"
        );
    }

    #[test]
    fn one_failed_pod_is_a_failure() {
        let pods = [
            followed("a", Progress::Running),
            followed("b", Progress::Failed("the pod was deleted".to_owned())),
        ];
        let error = result(&pods, None).unwrap_err().to_string();
        assert_eq!(error, "pod/web failed: the pod was deleted");
        assert_eq!(result(&pods[..1], None), Ok(()));
    }

    #[test]
    fn a_pod_that_disappears_was_deleted() {
        let now = SystemTime::now();
        let mut pod = FollowedPod::new(Name::new("default", "web"));
        pod.update(None, now);
        assert_eq!(
            pod.progress,
            Progress::Waiting,
            "it may not have been created yet"
        );
        let document = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "uid-1"},
        });
        let existing = Pod::deserialize(document).unwrap();
        pod.update(Some(&existing), now);
        assert_eq!(pod.progress, Progress::Waiting);
        pod.update(None, now);
        let deleted = Progress::Failed("the pod was deleted".to_owned());
        assert_eq!(pod.progress, deleted);
    }
}

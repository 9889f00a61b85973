//! The state of a pod, as the container runtime reports it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use crust_proto::cri::v1::{self, ContainerState, PodSandboxState};

use super::labels;
use crate::events::Regarding;
use crate::objects::manifest::is_name;
use crate::objects::{Kind, Name};

/// kubelet's `terminationGracePeriodSeconds` where nobody says otherwise.
const GRACE: Duration = Duration::from_secs(30);

/// A pod that the runtime has something of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) name: Name,
    pub(crate) uid: String,
    /// The newest first.
    pub(crate) sandboxes: Vec<Sandbox>,
    /// The newest first of each name.
    pub(crate) containers: Vec<Container>,
}

/// A pod's sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sandbox {
    /// The runtime's.
    pub(crate) id: String,
    /// How many there were before it.
    pub(crate) attempt: u32,
    /// Whether it lives.
    pub(crate) is_ready: bool,
    /// When it was made.
    pub(crate) created: SystemTime,
    /// The runtime handler. Empty means the runtime's choice.
    pub(crate) handler: String,
    /// In the pod's network; none in the node's.
    pub(crate) address: Option<String>,
    /// How long the pod's containers have to end.
    pub(crate) grace: Duration,
    /// When the pod's first one was made.
    pub(crate) started: SystemTime,
}

/// A pod's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    /// The runtime's.
    pub(crate) id: String,
    /// The id of that which it is in.
    pub(crate) sandbox: String,
    /// In the pod.
    pub(crate) name: String,
    /// How often it was started before.
    pub(crate) attempt: u32,
    /// The image as the runtime has it.
    pub(crate) image_id: String,
    /// When it was made.
    pub(crate) created: SystemTime,
    pub(crate) state: State,
    /// How long the one after it waits.
    pub(crate) backoff: Duration,
}

/// The state of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It was never started.
    Created,
    /// It runs.
    Running {
        /// Since when.
        since: SystemTime,
    },
    /// It ended, or couldn't be started.
    Exited(Exit),
    /// The runtime can't tell.
    Unknown,
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The exit code, as a shell has it.
    pub(crate) code: i32,
    /// When it was started, if it was.
    pub(crate) started: Option<SystemTime>,
    /// When it ended.
    pub(crate) finished: SystemTime,
    /// In one word: `Completed`, `Error`, `OOMKilled`, `StartError`.
    pub(crate) reason: String,
    /// The runtime's own words.
    pub(crate) message: String,
}

impl Container {
    /// Whether processes of it may live.
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Unknown)
    }

    /// How it ended, if it did.
    pub(crate) const fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

impl Observed {
    /// The last container by a name that was made.
    pub(crate) fn latest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|it| it.name == name)
    }

    /// The last one by a name in a sandbox.
    pub(crate) fn latest_in(&self, sandbox: &str, name: &str) -> Option<&Container> {
        let mut containers = self.containers.iter();
        containers.find(|it| it.sandbox == sandbox && it.name == name)
    }

    /// The one before the last by a name, if it ended.
    pub(crate) fn before(&self, latest: &Container) -> Option<&Container> {
        let mut containers = self.containers.iter();
        containers.find(|it| it.name == latest.name && it.id != latest.id && it.exit().is_some())
    }

    /// Those with processes that may live.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|it| it.is_alive())
    }

    /// Whether nothing of it runs: its volumes are free.
    pub(crate) fn is_stopped(&self) -> bool {
        self.alive().next().is_none() && !self.sandboxes.iter().any(|it| it.is_ready)
    }

    /// Returns how long its containers have to end, as it was set when the last sandbox was made.
    pub(crate) fn grace(&self) -> Duration {
        self.sandboxes.first().map_or(GRACE, |it| it.grace)
    }
}

impl From<&Observed> for Regarding {
    fn from(pod: &Observed) -> Self {
        Self {
            kind: Kind::Pod,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// Sandboxes with their addresses, and containers with their status where they have one, put together by pods' uids.
/// What has another's labels is another's.
pub(crate) fn gather(
    sandboxes: Vec<(v1::PodSandbox, Option<String>)>,
    containers: Vec<(v1::Container, Option<v1::ContainerStatus>)>,
) -> BTreeMap<String, Observed> {
    let mut pods = BTreeMap::new();
    for (sandbox, address) in sandboxes {
        if let Some(pod) = pod_of(&mut pods, &sandbox.labels) {
            pod.sandboxes.push(Sandbox::of(sandbox, address));
        }
    }
    for (container, status) in containers {
        if let Some(pod) = pod_of(&mut pods, &container.labels)
            && let Some(container) = Container::of(container, status)
        {
            pod.containers.push(container);
        }
    }
    // By attempts first: containerd knows no time of a sandbox that it couldn't make.
    for pod in pods.values_mut() {
        pod.sandboxes
            .sort_by_key(|it| std::cmp::Reverse((it.attempt, it.created)));
        pod.containers
            .sort_by_key(|it| std::cmp::Reverse((it.attempt, it.created)));
    }
    pods
}

fn pod_of<'p>(
    pods: &'p mut BTreeMap<String, Observed>,
    labels: &HashMap<String, String>,
) -> Option<&'p mut Observed> {
    let label = |key| labels.get(key).filter(|value| is_name(value));
    let uid = label(labels::POD_UID)?;
    let name = Name::new(label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?);
    let pod = pods.entry(uid.clone()).or_insert_with(|| Observed {
        name,
        uid: uid.clone(),
        sandboxes: Vec::new(),
        containers: Vec::new(),
    });
    Some(pod)
}

impl Sandbox {
    fn of(sandbox: v1::PodSandbox, address: Option<String>) -> Self {
        let is_ready = sandbox.state() == PodSandboxState::SandboxReady;
        let created = moment(sandbox.created_at);
        let note = |key| sandbox.annotations.get(key)?.parse().ok();
        Self {
            attempt: sandbox.metadata.map(|it| it.attempt).unwrap_or_default(),
            is_ready,
            created,
            address,
            grace: note(labels::GRACE).map_or(GRACE, Duration::from_secs),
            started: note(labels::STARTED).map_or(created, |it| {
                SystemTime::UNIX_EPOCH + Duration::from_nanos(it)
            }),
            handler: sandbox.runtime_handler,
            id: sandbox.id,
        }
    }
}

impl Container {
    fn of(container: v1::Container, status: Option<v1::ContainerStatus>) -> Option<Self> {
        let listed = container.state();
        let state = match status {
            Some(status) => State::of(status),
            None if listed == ContainerState::ContainerCreated => State::Created,
            None => State::Unknown,
        };
        let name = container.labels.get(labels::CONTAINER_NAME);
        let name = name.filter(|name| is_name(name))?;
        let backoff = container.annotations.get(labels::BACKOFF);
        let backoff = backoff.and_then(|it| it.parse().ok());
        Some(Self {
            name: name.clone(),
            attempt: container.metadata.map(|it| it.attempt).unwrap_or_default(),
            created: moment(container.created_at),
            state,
            backoff: Duration::from_secs(backoff.unwrap_or_default()),
            id: container.id,
            sandbox: container.pod_sandbox_id,
            image_id: container.image_ref,
        })
    }
}

impl State {
    fn of(status: v1::ContainerStatus) -> Self {
        match status.state() {
            ContainerState::ContainerCreated => Self::Created,
            ContainerState::ContainerRunning => Self::Running {
                since: moment(status.started_at),
            },
            ContainerState::ContainerExited => Self::Exited(Exit {
                code: status.exit_code,
                started: (status.started_at > 0).then(|| moment(status.started_at)),
                finished: moment(status.finished_at),
                reason: status.reason,
                message: status.message,
            }),
            ContainerState::ContainerUnknown => Self::Unknown,
        }
    }
}

/// Returns the time of the CRI's nanoseconds.
fn moment(nanoseconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(uid: &str, container: &str) -> HashMap<String, String> {
        let labels = [
            (labels::POD_NAME, "web"),
            (labels::POD_NAMESPACE, "shop"),
            (labels::POD_UID, uid),
            (labels::CONTAINER_NAME, container),
        ];
        labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into()
    }

    fn sandbox(uid: &str, attempt: u32, ready: bool) -> v1::PodSandbox {
        let state = if ready {
            PodSandboxState::SandboxReady
        } else {
            PodSandboxState::SandboxNotready
        };
        v1::PodSandbox {
            id: format!("s{attempt}"),
            metadata: Some(v1::PodSandboxMetadata {
                attempt,
                ..v1::PodSandboxMetadata::default()
            }),
            state: state.into(),
            created_at: 1000 + i64::from(attempt),
            labels: labelled(uid, ""),
            ..v1::PodSandbox::default()
        }
    }

    fn container(
        attempt: u32,
        state: ContainerState,
    ) -> (v1::Container, Option<v1::ContainerStatus>) {
        let listed = v1::Container {
            id: format!("c{attempt}"),
            metadata: Some(v1::ContainerMetadata {
                attempt,
                ..v1::ContainerMetadata::default()
            }),
            state: state.into(),
            labels: labelled("u", "app"),
            ..v1::Container::default()
        };
        let status = v1::ContainerStatus {
            state: state.into(),
            exit_code: 3,
            finished_at: 2_000_000_000,
            ..v1::ContainerStatus::default()
        };
        let is_told = matches!(
            state,
            ContainerState::ContainerRunning | ContainerState::ContainerExited
        );
        (listed, is_told.then_some(status))
    }

    #[test]
    fn the_newest_comes_first() {
        let sandboxes = [0, 2, 1].map(|attempt| (sandbox("u", attempt, attempt == 2), None));
        let containers = [
            container(0, ContainerState::ContainerExited),
            container(2, ContainerState::ContainerCreated),
            container(1, ContainerState::ContainerExited),
        ];
        let pods = gather(sandboxes.into(), containers.into());
        let pod = &pods["u"];
        assert_eq!(pod.name, Name::new("shop", "web"));
        let ids: Vec<&str> = pod.sandboxes.iter().map(|it| it.id.as_str()).collect();
        assert_eq!(ids, ["s2", "s1", "s0"]);
        let latest = pod.latest("app").unwrap();
        assert_eq!((latest.id.as_str(), &latest.state), ("c2", &State::Created));
        let before = pod.before(latest).unwrap();
        assert_eq!(before.id, "c1");
        let exit = before.exit().unwrap();
        assert_eq!((exit.code, exit.started), (3, None));
        assert_eq!(
            exit.finished,
            SystemTime::UNIX_EPOCH + Duration::from_secs(2)
        );
        assert!(!pod.is_stopped(), "a sandbox is ready");
        assert_eq!(pod.alive().count(), 0);
    }

    /// The state of a list doesn't count before the container's status has confirmed it.
    #[test]
    fn what_the_runtime_cannot_tell_may_live() {
        let unknown = container(0, ContainerState::ContainerUnknown);
        let pods = gather(Vec::new(), vec![unknown]);
        assert_eq!(pods["u"].alive().count(), 1);
        assert!(!pods["u"].is_stopped());
    }

    #[test]
    fn recorded_pod_state_is_read_and_the_rest_is_kubelets() {
        let mut first = sandbox("u", 0, true);
        let notes = [(labels::GRACE, "5"), (labels::STARTED, "7000000000")];
        first.annotations = notes
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let address = Some("10.0.0.7".to_owned());
        let pods = gather(
            vec![(first, address.clone()), (sandbox("v", 0, false), None)],
            Vec::new(),
        );
        let first = &pods["u"].sandboxes[0];
        assert_eq!(first.address, address);
        assert_eq!(pods["u"].grace(), Duration::from_secs(5));
        assert_eq!(
            first.started,
            SystemTime::UNIX_EPOCH + Duration::from_secs(7)
        );
        assert_eq!(pods["v"].grace(), GRACE);
        assert_eq!(pods["v"].sandboxes[0].started, moment(1000));
        assert!(pods["v"].is_stopped());
    }

    /// They become parts of paths.
    #[test]
    fn labels_that_are_no_names_are_not_ours() {
        let pods = gather(vec![(sandbox("../u", 0, true), None)], Vec::new());
        assert_eq!(pods, BTreeMap::new());
    }
}

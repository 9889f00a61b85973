//! The state of a pod, as the container runtime reports it.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use crust_proto::cri::v1::{self, ContainerState, PodSandboxState};

use super::labels;
use crate::events::Regarding;
use crate::objects::manifest::is_name;
use crate::objects::{Kind, Name};

/// kubelet's default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The sandboxes and containers that the runtime has for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPod {
    pub(crate) name: Name,
    pub(crate) uid: String,
    /// The sandboxes, newest first.
    pub(crate) sandboxes: Vec<ObservedSandbox>,
    /// The containers. Those with the same name are sorted newest first.
    pub(crate) containers: Vec<ObservedContainer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSandbox {
    pub(crate) id: String,
    /// The number of sandboxes that the pod had before this one.
    pub(crate) attempt: u32,
    pub(crate) is_ready: bool,
    pub(crate) created: SystemTime,
    /// The runtime handler. Empty means the runtime's choice.
    pub(crate) handler: String,
    /// The IP address. `None` if the sandbox isn't ready or is in the node's network.
    pub(crate) address: Option<String>,
    /// The time that the pod's containers have to end.
    pub(crate) grace: Duration,
    /// When the pod's first sandbox was created.
    pub(crate) started: SystemTime,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedContainer {
    pub(crate) id: String,
    /// The ID of the sandbox.
    pub(crate) sandbox: String,
    /// The name in the pod.
    pub(crate) name: String,
    /// The number of times that a container with this name was started before.
    pub(crate) attempt: u32,
    /// The image's reference in the runtime.
    pub(crate) image_id: String,
    pub(crate) created: SystemTime,
    pub(crate) state: RunState,
    /// The delay before the next container with this name is started.
    pub(crate) backoff: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Created, but never started.
    Created,
    Running {
        since: SystemTime,
    },
    /// Ended, or couldn't be started.
    Exited(ContainerExit),
    /// The runtime doesn't know the state.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerExit {
    /// The exit code, which is 128 plus the number of the signal for a killed process.
    pub(crate) code: i32,
    /// When the container was started. `None` if it never was.
    pub(crate) started: Option<SystemTime>,
    pub(crate) finished: SystemTime,
    /// The runtime's reason, such as `Completed`, `Error`, `OOMKilled` or `StartError`.
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl ObservedContainer {
    /// Returns whether the container may have processes.
    pub(crate) const fn is_alive(&self) -> bool {
        matches!(self.state, RunState::Running { .. } | RunState::Unknown)
    }

    /// Returns how the container ended, or `None` if it hasn't.
    pub(crate) const fn exit(&self) -> Option<&ContainerExit> {
        match &self.state {
            RunState::Exited(exit) => Some(exit),
            _ => None,
        }
    }
}

impl ObservedPod {
    /// Returns the newest container with a name.
    pub(crate) fn latest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }

    /// Returns the newest container with a name in a sandbox.
    pub(crate) fn latest_in(&self, sandbox: &str, name: &str) -> Option<&ObservedContainer> {
        let mut containers = self.containers.iter();
        containers.find(|container| container.sandbox == sandbox && container.name == name)
    }

    /// Returns the newest ended container with the same name as `latest`, apart from `latest`.
    pub(crate) fn previous(&self, latest: &ObservedContainer) -> Option<&ObservedContainer> {
        let mut containers = self.containers.iter();
        containers.find(|container| {
            container.name == latest.name && container.id != latest.id && container.exit().is_some()
        })
    }

    /// Returns the containers that may have processes.
    pub(crate) fn alive(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers
            .iter()
            .filter(|container| container.is_alive())
    }

    /// Returns whether no container has processes and no sandbox is ready, which means that the pod's volumes aren't
    /// used any more.
    pub(crate) fn is_stopped(&self) -> bool {
        self.alive().next().is_none() && !self.sandboxes.iter().any(|sandbox| sandbox.is_ready)
    }

    /// Returns how long the pod's containers have to end, as recorded with its newest sandbox.
    pub(crate) fn grace(&self) -> Duration {
        self.sandboxes
            .first()
            .map_or(DEFAULT_GRACE, |sandbox| sandbox.grace)
    }
}

impl From<&ObservedPod> for Regarding {
    fn from(pod: &ObservedPod) -> Self {
        Self {
            kind: Kind::Pod,
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// Groups sandboxes, with their addresses, and containers, with their status if it is known, by the UIDs of their pods.
/// Those without valid labels are left out.
pub(crate) fn group_by_pod(
    sandboxes: Vec<(v1::PodSandbox, Option<String>)>,
    containers: Vec<(v1::Container, Option<v1::ContainerStatus>)>,
) -> BTreeMap<String, ObservedPod> {
    let mut pods = BTreeMap::new();
    for (sandbox, address) in sandboxes {
        if let Some(pod) = pod_of(&mut pods, &sandbox.labels) {
            pod.sandboxes
                .push(ObservedSandbox::from_cri(sandbox, address));
        }
    }
    for (container, status) in containers {
        if let Some(pod) = pod_of(&mut pods, &container.labels)
            && let Some(container) = ObservedContainer::from_cri(container, status)
        {
            pod.containers.push(container);
        }
    }
    // The attempt comes first because containerd reports no creation time of a sandbox that it failed to create.
    for pod in pods.values_mut() {
        pod.sandboxes
            .sort_by_key(|sandbox| std::cmp::Reverse((sandbox.attempt, sandbox.created)));
        pod.containers
            .sort_by_key(|container| std::cmp::Reverse((container.attempt, container.created)));
    }
    pods
}

fn pod_of<'p>(
    pods: &'p mut BTreeMap<String, ObservedPod>,
    labels: &HashMap<String, String>,
) -> Option<&'p mut ObservedPod> {
    let label = |key| labels.get(key).filter(|value| is_name(value));
    let uid = label(labels::POD_UID)?;
    let name = Name::new(label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?);
    let pod = pods.entry(uid.clone()).or_insert_with(|| ObservedPod {
        name,
        uid: uid.clone(),
        sandboxes: Vec::new(),
        containers: Vec::new(),
    });
    Some(pod)
}

impl ObservedSandbox {
    fn from_cri(sandbox: v1::PodSandbox, address: Option<String>) -> Self {
        let is_ready = sandbox.state() == PodSandboxState::SandboxReady;
        let created = from_nanoseconds(sandbox.created_at);
        let annotation = |key| sandbox.annotations.get(key)?.parse().ok();
        Self {
            attempt: sandbox
                .metadata
                .map(|metadata| metadata.attempt)
                .unwrap_or_default(),
            is_ready,
            created,
            address,
            grace: annotation(labels::GRACE).map_or(DEFAULT_GRACE, Duration::from_secs),
            started: annotation(labels::STARTED).map_or(created, |nanoseconds| {
                SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
            }),
            handler: sandbox.runtime_handler,
            id: sandbox.id,
        }
    }
}

impl ObservedContainer {
    fn from_cri(container: v1::Container, status: Option<v1::ContainerStatus>) -> Option<Self> {
        let listed = container.state();
        let state = match status {
            Some(status) => RunState::from_status(status),
            None if listed == ContainerState::ContainerCreated => RunState::Created,
            None => RunState::Unknown,
        };
        let name = container.labels.get(labels::CONTAINER_NAME);
        let name = name.filter(|name| is_name(name))?;
        let backoff = container.annotations.get(labels::BACKOFF);
        let backoff = backoff.and_then(|backoff| backoff.parse().ok());
        Some(Self {
            name: name.clone(),
            attempt: container
                .metadata
                .map(|metadata| metadata.attempt)
                .unwrap_or_default(),
            created: from_nanoseconds(container.created_at),
            state,
            backoff: Duration::from_secs(backoff.unwrap_or_default()),
            id: container.id,
            sandbox: container.pod_sandbox_id,
            image_id: container.image_ref,
        })
    }
}

impl RunState {
    fn from_status(status: v1::ContainerStatus) -> Self {
        match status.state() {
            ContainerState::ContainerCreated => Self::Created,
            ContainerState::ContainerRunning => Self::Running {
                since: from_nanoseconds(status.started_at),
            },
            ContainerState::ContainerExited => Self::Exited(ContainerExit {
                code: status.exit_code,
                started: (status.started_at > 0).then(|| from_nanoseconds(status.started_at)),
                finished: from_nanoseconds(status.finished_at),
                reason: status.reason,
                message: status.message,
            }),
            ContainerState::ContainerUnknown => Self::Unknown,
        }
    }
}

/// Converts a time of the CRI, which is in nanoseconds since the Unix epoch.
fn from_nanoseconds(nanoseconds: i64) -> SystemTime {
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
        let has_status = matches!(
            state,
            ContainerState::ContainerRunning | ContainerState::ContainerExited
        );
        (listed, has_status.then_some(status))
    }

    #[test]
    fn the_newest_is_sorted_first() {
        let sandboxes = [0, 2, 1].map(|attempt| (sandbox("u", attempt, attempt == 2), None));
        let containers = [
            container(0, ContainerState::ContainerExited),
            container(2, ContainerState::ContainerCreated),
            container(1, ContainerState::ContainerExited),
        ];
        let pods = group_by_pod(sandboxes.into(), containers.into());
        let pod = &pods["u"];
        assert_eq!(pod.name, Name::new("shop", "web"));
        let ids: Vec<&str> = pod
            .sandboxes
            .iter()
            .map(|sandbox| sandbox.id.as_str())
            .collect();
        assert_eq!(ids, ["s2", "s1", "s0"]);
        let latest = pod.latest("app").unwrap();
        assert_eq!(
            (latest.id.as_str(), &latest.state),
            ("c2", &RunState::Created)
        );
        let previous = pod.previous(latest).unwrap();
        assert_eq!(previous.id, "c1");
        let exit = previous.exit().unwrap();
        assert_eq!((exit.code, exit.started), (3, None));
        assert_eq!(
            exit.finished,
            SystemTime::UNIX_EPOCH + Duration::from_secs(2)
        );
        assert!(!pod.is_stopped(), "a sandbox is ready");
        assert_eq!(pod.alive().count(), 0);
    }

    /// The runtime lists the container without a status.
    #[test]
    fn a_container_in_an_unknown_state_may_be_alive() {
        let unknown = container(0, ContainerState::ContainerUnknown);
        let pods = group_by_pod(Vec::new(), vec![unknown]);
        assert_eq!(pods["u"].alive().count(), 1);
        assert!(!pods["u"].is_stopped());
    }

    #[test]
    fn missing_annotations_have_kubelets_defaults() {
        let mut first = sandbox("u", 0, true);
        let annotations = [(labels::GRACE, "5"), (labels::STARTED, "7000000000")];
        first.annotations = annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let address = Some("10.0.0.7".to_owned());
        let pods = group_by_pod(
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
        assert_eq!(pods["v"].grace(), DEFAULT_GRACE);
        assert_eq!(pods["v"].sandboxes[0].started, from_nanoseconds(1000));
        assert!(pods["v"].is_stopped());
    }

    /// The values of labels become parts of paths, so `../` in a UID must not be accepted.
    #[test]
    fn pods_with_invalid_labels_are_left_out() {
        let pods = group_by_pod(vec![(sandbox("../u", 0, true), None)], Vec::new());
        assert_eq!(pods, BTreeMap::new());
    }
}

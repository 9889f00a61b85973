//! Lists pods, with their sandboxes and containers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::PoisonError;

use crust_proto::cri::v1::{
    Container, ContainerFilter, ContainerState, ContainerStatus, ContainerStatusRequest,
    ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxFilter, PodSandboxState,
    PodSandboxStatusRequest,
};
use tonic::Code;

use super::{Cri, CriError, DEADLINE};
use crate::pods::labels;
use crate::pods::observed::{Observed, gather};

/// Answers of earlier calls that don't change: a list doesn't have them, and each takes a call of its own.
#[derive(Debug, Default)]
pub(super) struct SeenBefore {
    /// The status of containers that ran, or had ended. It holds as long as they are listed in that state.
    containers: HashMap<String, ContainerStatus>,
    /// The addresses of sandboxes that are ready, or none.
    addresses: HashMap<String, Option<String>>,
}

impl Cri {
    /// All pods of the owner's, by their uids.
    pub(crate) async fn pods(&self) -> Result<BTreeMap<String, Observed>, CriError> {
        let (sandboxes, containers) = self.listed(BTreeMap::new()).await?;
        self.forget_others(&sandboxes, &containers);
        self.observed(sandboxes, containers).await
    }

    /// One of the owner's pods, if there is anything of it.
    pub(crate) async fn pod(&self, uid: &str) -> Result<Option<Observed>, CriError> {
        let one = BTreeMap::from([(labels::POD_UID, uid)]);
        let (sandboxes, containers) = self.listed(one).await?;
        let mut pods = self.observed(sandboxes, containers).await?;
        Ok(pods.remove(uid))
    }

    async fn listed(
        &self,
        of: BTreeMap<&str, &str>,
    ) -> Result<(Vec<PodSandbox>, Vec<Container>), CriError> {
        let owners = (labels::OWNER, self.owner.as_str());
        let selector: HashMap<String, String> = of
            .into_iter()
            .chain([owners])
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .collect();
        let request = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter {
                label_selector: selector.clone(),
                ..PodSandboxFilter::default()
            }),
        };
        let sandboxes = self.ask("ListPodSandbox", DEADLINE, |mut to| async move {
            to.list_pod_sandbox(request).await
        });
        let sandboxes = sandboxes.await?.items;
        let request = ListContainersRequest {
            filter: Some(ContainerFilter {
                label_selector: selector,
                ..ContainerFilter::default()
            }),
        };
        let containers = self.ask("ListContainers", DEADLINE, |mut to| async move {
            to.list_containers(request).await
        });
        Ok((sandboxes, containers.await?.containers))
    }

    async fn observed(
        &self,
        sandboxes: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<BTreeMap<String, Observed>, CriError> {
        let mut addressed = Vec::new();
        for sandbox in sandboxes {
            let address = if sandbox.state() == PodSandboxState::SandboxReady {
                self.address(&sandbox.id).await?
            } else {
                None
            };
            addressed.push((sandbox, address));
        }
        let mut known = Vec::new();
        for container in containers {
            let status = match container.state() {
                ContainerState::ContainerRunning | ContainerState::ContainerExited => {
                    match self.status(&container).await? {
                        Some(status) => Some(status),
                        // Removed since it was listed.
                        None => continue,
                    }
                }
                _ => None,
            };
            known.push((container, status));
        }
        Ok(gather(addressed, known))
    }

    async fn status(&self, container: &Container) -> Result<Option<ContainerStatus>, CriError> {
        let id = &container.id;
        let seen = self.seen(|seen| seen.containers.get(id).cloned());
        if let Some(status) = seen.filter(|seen| seen.state == container.state) {
            return Ok(Some(status));
        }
        let request = ContainerStatusRequest {
            container_id: id.clone(),
            verbose: false,
        };
        let answer = self.ask("ContainerStatus", DEADLINE, |mut to| async move {
            to.container_status(request).await
        });
        let status = match answer.await {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(error) if error.code == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        self.seen(|seen| seen.containers.insert(id.clone(), status.clone()));
        Ok(Some(status))
    }

    async fn address(&self, sandbox: &str) -> Result<Option<String>, CriError> {
        if let Some(address) = self.seen(|seen| seen.addresses.get(sandbox).cloned()) {
            return Ok(address);
        }
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: sandbox.to_owned(),
            verbose: false,
        };
        let answer = self.ask("PodSandboxStatus", DEADLINE, |mut to| async move {
            to.pod_sandbox_status(request).await
        });
        let network = match answer.await {
            Ok(answer) => answer.status.unwrap_or_default().network,
            Err(error) if error.code == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let address = network.map(|it| it.ip).filter(|ip| !ip.is_empty());
        self.seen(|seen| seen.addresses.insert(sandbox.to_owned(), address.clone()));
        Ok(address)
    }

    fn forget_others(&self, sandboxes: &[PodSandbox], containers: &[Container]) {
        let sandboxes: HashSet<&str> = sandboxes.iter().map(|it| it.id.as_str()).collect();
        let containers: HashSet<&str> = containers.iter().map(|it| it.id.as_str()).collect();
        self.seen(|seen| {
            seen.addresses
                .retain(|id, _| sandboxes.contains(id.as_str()));
            seen.containers
                .retain(|id, _| containers.contains(id.as_str()));
        });
    }

    fn seen<T>(&self, look: impl FnOnce(&mut SeenBefore) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

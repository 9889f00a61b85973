//! Lists the pods of the container runtime, with their sandboxes and containers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::PoisonError;

use crust_proto::cri::v1::{
    Container, ContainerFilter, ContainerState, ContainerStatus, ContainerStatusRequest,
    ListContainersRequest, ListPodSandboxRequest, PodSandbox, PodSandboxFilter, PodSandboxState,
    PodSandboxStatusRequest,
};
use tonic::Code;

use super::{CALL_TIMEOUT, Cri, CriError};
use crate::pods::labels;
use crate::pods::observed::{ObservedPod, group_by_pod};

/// Responses of earlier calls that are still valid. The CRI's lists don't contain these data, so each sandbox and
/// container takes a call of its own.
#[derive(Debug, Default)]
pub(super) struct StatusCache {
    /// The status of running and exited containers. It is valid while a container is listed in the same state.
    containers: HashMap<String, ContainerStatus>,
    /// The IP addresses of ready sandboxes. `None` if a sandbox has no address.
    addresses: HashMap<String, Option<String>>,
}

impl Cri {
    /// Returns all pods of the owner, by their UIDs.
    pub(crate) async fn pods(&self) -> Result<BTreeMap<String, ObservedPod>, CriError> {
        let (sandboxes, containers) = self.list(BTreeMap::new()).await?;
        self.retain_cached(&sandboxes, &containers);
        self.observe(sandboxes, containers).await
    }

    /// Returns one of the owner's pods. `None` if it has neither a sandbox nor a container.
    pub(crate) async fn pod(&self, uid: &str) -> Result<Option<ObservedPod>, CriError> {
        let labels = BTreeMap::from([(labels::POD_UID, uid)]);
        let (sandboxes, containers) = self.list(labels).await?;
        let mut pods = self.observe(sandboxes, containers).await?;
        Ok(pods.remove(uid))
    }

    /// Lists the owner's sandboxes and containers that have these labels.
    async fn list(
        &self,
        required: BTreeMap<&str, &str>,
    ) -> Result<(Vec<PodSandbox>, Vec<Container>), CriError> {
        let owner = (labels::OWNER, self.owner.as_str());
        let selector: HashMap<String, String> = required
            .into_iter()
            .chain([owner])
            .map(|(label, value)| (label.to_owned(), value.to_owned()))
            .collect();
        let request = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter {
                label_selector: selector.clone(),
                ..PodSandboxFilter::default()
            }),
        };
        let sandboxes =
            self.call_runtime("ListPodSandbox", CALL_TIMEOUT, |mut client| async move {
                client.list_pod_sandbox(request).await
            });
        let sandboxes = sandboxes.await?.items;
        let request = ListContainersRequest {
            filter: Some(ContainerFilter {
                label_selector: selector,
                ..ContainerFilter::default()
            }),
        };
        let containers =
            self.call_runtime("ListContainers", CALL_TIMEOUT, |mut client| async move {
                client.list_containers(request).await
            });
        Ok((sandboxes, containers.await?.containers))
    }

    /// Adds the addresses of sandboxes and the status of containers.
    async fn observe(
        &self,
        sandboxes: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<BTreeMap<String, ObservedPod>, CriError> {
        let mut with_addresses = Vec::new();
        for sandbox in sandboxes {
            let address = if sandbox.state() == PodSandboxState::SandboxReady {
                self.address(&sandbox.id).await?
            } else {
                None
            };
            with_addresses.push((sandbox, address));
        }
        let mut with_status = Vec::new();
        for container in containers {
            let status = match container.state() {
                ContainerState::ContainerRunning | ContainerState::ContainerExited => {
                    match self.status(&container).await? {
                        Some(status) => Some(status),
                        // The container was removed after it was listed.
                        None => continue,
                    }
                }
                _ => None,
            };
            with_status.push((container, status));
        }
        Ok(group_by_pod(with_addresses, with_status))
    }

    async fn status(&self, container: &Container) -> Result<Option<ContainerStatus>, CriError> {
        let id = &container.id;
        let cached = self.with_cache(|cache| cache.containers.get(id).cloned());
        if let Some(status) = cached.filter(|cached| cached.state == container.state) {
            return Ok(Some(status));
        }
        let request = ContainerStatusRequest {
            container_id: id.clone(),
            verbose: false,
        };
        let response =
            self.call_runtime("ContainerStatus", CALL_TIMEOUT, |mut client| async move {
                client.container_status(request).await
            });
        let status = match response.await {
            Ok(response) => response.status.unwrap_or_default(),
            Err(error) if error.code == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        self.with_cache(|cache| cache.containers.insert(id.clone(), status.clone()));
        Ok(Some(status))
    }

    async fn address(&self, sandbox: &str) -> Result<Option<String>, CriError> {
        if let Some(address) = self.with_cache(|cache| cache.addresses.get(sandbox).cloned()) {
            return Ok(address);
        }
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: sandbox.to_owned(),
            verbose: false,
        };
        let response =
            self.call_runtime("PodSandboxStatus", CALL_TIMEOUT, |mut client| async move {
                client.pod_sandbox_status(request).await
            });
        let network = match response.await {
            Ok(response) => response.status.unwrap_or_default().network,
            Err(error) if error.code == Code::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let address = network
            .map(|network| network.ip)
            .filter(|ip| !ip.is_empty());
        self.with_cache(|cache| cache.addresses.insert(sandbox.to_owned(), address.clone()));
        Ok(address)
    }

    /// Removes from the cache the sandboxes and containers that aren't listed any more.
    fn retain_cached(&self, sandboxes: &[PodSandbox], containers: &[Container]) {
        let sandboxes: HashSet<&str> = sandboxes
            .iter()
            .map(|sandbox| sandbox.id.as_str())
            .collect();
        let containers: HashSet<&str> = containers
            .iter()
            .map(|container| container.id.as_str())
            .collect();
        self.with_cache(|cache| {
            cache
                .addresses
                .retain(|id, _| sandboxes.contains(id.as_str()));
            cache
                .containers
                .retain(|id, _| containers.contains(id.as_str()));
        });
    }

    fn with_cache<T>(&self, function: impl FnOnce(&mut StatusCache) -> T) -> T {
        function(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

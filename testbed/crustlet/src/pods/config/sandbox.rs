//! The configuration of a pod's sandbox.

use std::collections::HashMap;
use std::time::SystemTime;

use crust_proto::cri::v1::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata};

use super::{ConfigError, NodeInfo, security, utf8};
use crate::objects::Pod;
use crate::pods::labels;

/// The length to which kubelet truncates hostnames.
const MAX_HOSTNAME_LENGTH: usize = 63;

/// Returns the configuration of a pod's sandbox. `started` is when the pod's first sandbox was created.
pub(crate) fn sandbox(
    pod: &Pod,
    node: &NodeInfo,
    attempt: u32,
    started: SystemTime,
) -> Result<PodSandboxConfig, ConfigError> {
    let spec = &pod.spec;
    let security_context = spec.security_context.as_ref();
    let sysctls = security_context
        .iter()
        .flat_map(|context| context.sysctls.iter().flatten());
    let started = started
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut labels: HashMap<String, String> = to_hash_map(pod.metadata.labels.as_ref());
    labels.extend(identity_labels(pod, node));
    let mut annotations: HashMap<String, String> = to_hash_map(pod.metadata.annotations.as_ref());
    annotations.extend([
        (labels::GRACE.to_owned(), pod.grace().to_string()),
        (labels::STARTED.to_owned(), started.as_nanos().to_string()),
    ]);
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.name.clone(),
            uid: pod.uid.clone(),
            namespace: pod.name.namespace.clone(),
            attempt,
        }),
        hostname: match spec.host_network {
            Some(true) => String::new(),
            _ => hostname(pod),
        },
        log_directory: utf8(&node.pod_logs_dir(&pod.name, &pod.uid))?,
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: node.cgroup_parent.clone(),
            security_context: Some(security::sandbox(pod)),
            sysctls: sysctls
                .map(|sysctl| (sysctl.name.clone(), sysctl.value.clone()))
                .collect(),
        }),
    })
}

/// Returns the labels that identify the pod of a sandbox or container. They override the pod's own labels.
pub(super) fn identity_labels(pod: &Pod, node: &NodeInfo) -> [(String, String); 5] {
    let labels = [
        (labels::POD_NAME, &pod.name.name),
        (labels::POD_NAMESPACE, &pod.name.namespace),
        (labels::POD_UID, &pod.uid),
        (labels::OWNER, &node.owner),
        (labels::NODE, &node.name),
    ];
    labels.map(|(label, value)| (label.to_owned(), value.clone()))
}

fn to_hash_map(
    map: Option<&std::collections::BTreeMap<String, String>>,
) -> HashMap<String, String> {
    let entries = map.into_iter().flatten();
    entries
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn hostname(pod: &Pod) -> String {
    let configured = pod.spec.hostname.as_deref().filter(|name| !name.is_empty());
    let name = configured.unwrap_or(&pod.name.name);
    // A pod's name may be longer than a hostname. It is ASCII, so it can be cut anywhere.
    let name = name.get(..MAX_HOSTNAME_LENGTH).unwrap_or(name);
    name.trim_end_matches(['-', '.']).to_owned()
}

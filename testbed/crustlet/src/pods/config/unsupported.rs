//! Fields of a pod that crustlet doesn't support.

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVarSource, PodSpec, VolumeMount,
};

use super::ConfigError;
use crate::objects::Pod;

/// The way in which an unsupported field is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handling {
    /// The pod isn't started, because it would misbehave without the field.
    Refused,
    /// The pod runs without the field, and an event warns about that.
    Ignored,
}

use Handling::{Ignored, Refused};

/// A function that returns whether a pod or a container sets a field to an unsupported value.
#[derive(Clone, Copy)]
enum FieldCheck {
    Pod(fn(&PodSpec) -> bool),
    Container(fn(&Container) -> bool),
}

struct UnsupportedField {
    field: &'static str,
    is_set: FieldCheck,
    handling: Handling,
    reason: &'static str,
}

const fn pod(
    field: &'static str,
    is_set: fn(&PodSpec) -> bool,
    handling: Handling,
    reason: &'static str,
) -> UnsupportedField {
    UnsupportedField {
        field,
        is_set: FieldCheck::Pod(is_set),
        handling,
        reason,
    }
}

const fn container(
    field: &'static str,
    is_set: fn(&Container) -> bool,
    handling: Handling,
    reason: &'static str,
) -> UnsupportedField {
    UnsupportedField {
        field,
        is_set: FieldCheck::Container(is_set),
        handling,
        reason,
    }
}

/// All unsupported fields, except those that only schedulers and controllers read.
#[rustfmt::skip]
const TABLE: [UnsupportedField; 38] = [
    pod("hostUsers: false", |spec| spec.host_users == Some(false), Refused, "crustlet doesn't support user namespaces"),
    pod("restartPolicy", |spec| !is_unset_or_one_of(spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]), Refused, "the policies are Always, OnFailure and Never"),
    pod("initContainers.restartPolicy", |spec| spec.init_containers.iter().flatten().any(|container| container.restart_policy.is_some()), Refused, "crustlet doesn't support sidecars; hint: use an app container"),
    pod("os", |spec| spec.os.as_ref().is_some_and(|os| os.name != "linux"), Refused, "crustlet runs only Linux containers"),
    pod("resources", |spec| spec.resources.is_some(), Refused, "crustlet limits only the resources of containers"),
    pod("resourceClaims", |spec| is_non_empty(spec.resource_claims.as_ref()), Refused, "crustlet doesn't allocate devices"),
    pod("hostAliases", |spec| is_non_empty(spec.host_aliases.as_ref()), Refused, "/etc/hosts is provided by the container runtime"),
    pod("dnsConfig", |spec| spec.dns_config.is_some(), Refused, "/etc/resolv.conf is provided by the container runtime"),
    pod("dnsPolicy: None", |spec| spec.dns_policy.as_deref() == Some("None"), Refused, "/etc/resolv.conf is provided by the container runtime"),
    pod("setHostnameAsFQDN", |spec| spec.set_hostname_as_fqdn == Some(true), Refused, "crustlet has no cluster domain"),
    pod("securityContext.seLinuxOptions", |spec| spec.security_context.as_ref().is_some_and(|context| context.se_linux_options.is_some()), Refused, "crustlet doesn't pass SELinux labels to the container runtime"),
    pod("securityContext.seccompProfile", |spec| spec.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref()).is_some_and(|profile| is_localhost_profile(&profile.type_)), Refused, SUPPORTED_PROFILES),
    pod("securityContext.appArmorProfile", |spec| spec.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref()).is_some_and(|profile| is_localhost_profile(&profile.type_)), Refused, SUPPORTED_PROFILES),
    pod("securityContext.supplementalGroupsPolicy", |spec| !is_unset_or_one_of(spec.security_context.as_ref().and_then(|context| context.supplemental_groups_policy.as_deref()), &["Merge"]), Refused, "the only policy is Merge"),
    pod("securityContext.windowsOptions", |spec| spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some()), Refused, "crustlet runs only Linux containers"),
    pod("volumes.emptyDir.medium", |spec| empty_dirs(spec).any(|volume| volume.medium.as_deref().is_some_and(|medium| !medium.is_empty())), Ignored, "the volume is a directory on the node's disk"),
    pod("volumes.emptyDir.sizeLimit", |spec| empty_dirs(spec).any(|volume| volume.size_limit.is_some()), Ignored, "crustlet doesn't evict pods"),
    pod("activeDeadlineSeconds", |spec| spec.active_deadline_seconds.is_some(), Ignored, "the pod runs until it ends or is deleted"),
    pod("imagePullSecrets", |spec| is_non_empty(spec.image_pull_secrets.as_ref()), Ignored, "images are pulled without credentials"),
    pod("readinessGates", |spec| is_non_empty(spec.readiness_gates.as_ref()), Ignored, "the pod is ready when its containers are"),
    pod("ephemeralContainers", |spec| is_non_empty(spec.ephemeral_containers.as_ref()), Ignored, "crustlet doesn't run ephemeral containers; hint: use crustlet exec"),
    container("envFrom", |container| is_non_empty(container.env_from.as_ref()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.configMapKeyRef", |container| value_sources(container).any(|source| source.config_map_key_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.secretKeyRef", |container| value_sources(container).any(|source| source.secret_key_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.resourceFieldRef", |container| value_sources(container).any(|source| source.resource_field_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("volumeDevices", |container| is_non_empty(container.volume_devices.as_ref()), Refused, "crustlet doesn't support raw block volumes; hint: use volumeMode: Filesystem"),
    container("volumeMounts.recursiveReadOnly: Enabled", |container| mounts(container).any(|mount| mount.recursive_read_only.as_deref() == Some("Enabled")), Refused, "crustlet doesn't request recursive read-only mounts; hint: use IfPossible"),
    container("volumeMounts.mountPropagation", |container| mounts(container).any(|mount| !is_unset_or_one_of(mount.mount_propagation.as_deref(), &["None", "HostToContainer", "Bidirectional"])), Refused, "the modes are None, HostToContainer and Bidirectional"),
    container("volumeMounts.mountPropagation: Bidirectional", |container| !is_privileged(container) && mounts(container).any(|mount| mount.mount_propagation.as_deref() == Some("Bidirectional")), Refused, "only privileged containers may use Bidirectional"),
    container("lifecycle", |container| container.lifecycle.is_some(), Refused, "crustlet doesn't run lifecycle hooks"),
    container("resources.claims", |container| container.resources.as_ref().is_some_and(|resources| is_non_empty(resources.claims.as_ref())), Refused, "crustlet doesn't allocate devices"),
    container("resources.limits", |container| container.resources.iter().flat_map(|resources| resources.limits.iter().flatten()).any(|(name, _)| !["cpu", "memory", "ephemeral-storage"].contains(&name.as_str())), Refused, "crustlet limits only cpu and memory"),
    container("securityContext.seLinuxOptions", |container| container.security_context.as_ref().is_some_and(|context| context.se_linux_options.is_some()), Refused, "crustlet doesn't pass SELinux labels to the container runtime"),
    container("securityContext.seccompProfile", |container| container.security_context.as_ref().and_then(|context| context.seccomp_profile.as_ref()).is_some_and(|profile| is_localhost_profile(&profile.type_)), Refused, SUPPORTED_PROFILES),
    container("securityContext.appArmorProfile", |container| container.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref()).is_some_and(|profile| is_localhost_profile(&profile.type_)), Refused, SUPPORTED_PROFILES),
    container("securityContext.procMount: Unmasked", |container| container.security_context.as_ref().is_some_and(|context| context.proc_mount.as_deref() == Some("Unmasked")), Refused, "Unmasked requires a user namespace, which crustlet doesn't support"),
    container("livenessProbe, readinessProbe, startupProbe", |container| container.liveness_probe.is_some() || container.readiness_probe.is_some() || container.startup_probe.is_some(), Ignored, "a running container counts as ready"),
    container("ports.hostPort", |container| container.ports.iter().flatten().any(|port| port.host_port.is_some()), Ignored, "only pods with hostNetwork have ports on the node"),
];

const SUPPORTED_VALUES: &str = "crustlet supports only literal values and fields of the pod's metadata; hint: use env with a value";
const SUPPORTED_PROFILES: &str = "the supported profiles are RuntimeDefault and Unconfined";

fn is_non_empty<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn is_unset_or_one_of(value: Option<&str>, known: &[&str]) -> bool {
    value.is_none_or(|value| known.contains(&value))
}

fn is_localhost_profile(profile: &str) -> bool {
    !["RuntimeDefault", "Unconfined"].contains(&profile)
}

fn value_sources(container: &Container) -> impl Iterator<Item = &EnvVarSource> {
    let variables = container.env.iter().flatten();
    variables.filter_map(|variable| variable.value_from.as_ref())
}

fn empty_dirs(spec: &PodSpec) -> impl Iterator<Item = &EmptyDirVolumeSource> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| volume.empty_dir.as_ref())
}

fn mounts(container: &Container) -> impl Iterator<Item = &VolumeMount> {
    container.volume_mounts.iter().flatten()
}

pub(super) fn is_privileged(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.is_some_and(|context| context.privileged == Some(true))
}

/// Checks that no field of a pod has to be refused. The error names all such fields.
pub(super) fn check(pod: &Pod) -> Result<(), ConfigError> {
    let mut refused = unsupported(pod, Refused);
    // Sentences with a hint come last, because the hints of an error are at its end.
    refused.sort_by_key(|sentence| sentence.contains("hint: "));
    if refused.is_empty() {
        Ok(())
    } else {
        Err(ConfigError::Unsupported(refused))
    }
}

/// Returns a sentence for each field of a pod that is ignored.
pub(crate) fn ignored(pod: &Pod) -> Vec<String> {
    unsupported(pod, Ignored)
}

fn unsupported(pod: &Pod, handling: Handling) -> Vec<String> {
    let mut sentences = Vec::new();
    for row in TABLE.iter().filter(|row| row.handling == handling) {
        let UnsupportedField { field, reason, .. } = row;
        match row.is_set {
            FieldCheck::Pod(is_set) if is_set(&pod.spec) => {
                sentences.push(format!("spec.{field}: {reason}"));
            }
            FieldCheck::Pod(_) => {}
            FieldCheck::Container(is_set) => {
                let containers = pod.containers().filter(|container| is_set(container));
                let names = containers.map(|container| &container.name);
                sentences
                    .extend(names.map(|name| format!("container {name:?}: {field}: {reason}")));
            }
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fields_are_documented() {
        let document = include_str!("../../../../../docs/crustlet.md");
        let (_, rest) = document.split_once("\n| refused |").expect("a table");
        let (refused, rest) = rest.split_once("\n| ignored |").expect("a second table");
        let (ignored, _) = rest.split_once("\n\n").expect("the end of the table");
        for UnsupportedField {
            field, handling, ..
        } in TABLE
        {
            let (right, wrong) = match handling {
                Refused => (refused, ignored),
                Ignored => (ignored, refused),
            };
            let field = format!("`{field}`");
            assert!(right.contains(&field) && !wrong.contains(&field), "{field}");
        }
    }
}

//! Fields of a pod that crustlet doesn't support.

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVarSource, PodSpec, VolumeMount,
};

use super::ConfigError;
use crate::objects::Pod;

/// How an unsupported field is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handling {
    /// The pod isn't started, because it would misbehave without the field.
    Refused,
    /// The pod runs without the field, and an event warns about that.
    Ignored,
}

use Handling::{Ignored, Refused};

/// The object that has the field, with a function that returns whether the field is set to an unsupported value.
#[derive(Clone, Copy)]
enum FieldOf {
    Pod(fn(&PodSpec) -> bool),
    Container(fn(&Container) -> bool),
}

struct UnsupportedField {
    field: &'static str,
    is_set: FieldOf,
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
        is_set: FieldOf::Pod(is_set),
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
        is_set: FieldOf::Container(is_set),
        handling,
        reason,
    }
}

/// All unsupported fields, except those that only schedulers and controllers read.
#[rustfmt::skip]
const TABLE: [UnsupportedField; 38] = [
    pod("hostUsers: false", |it| it.host_users == Some(false), Refused, "crustlet doesn't support user namespaces"),
    pod("restartPolicy", |it| !is_unset_or_one_of(it.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]), Refused, "the policies are Always, OnFailure and Never"),
    pod("initContainers.restartPolicy", |it| it.init_containers.iter().flatten().any(|it| it.restart_policy.is_some()), Refused, "crustlet doesn't support sidecars; hint: use an app container"),
    pod("os", |it| it.os.as_ref().is_some_and(|it| it.name != "linux"), Refused, "crustlet runs only Linux containers"),
    pod("resources", |it| it.resources.is_some(), Refused, "crustlet limits only the resources of containers"),
    pod("resourceClaims", |it| is_non_empty(it.resource_claims.as_ref()), Refused, "crustlet doesn't allocate devices"),
    pod("hostAliases", |it| is_non_empty(it.host_aliases.as_ref()), Refused, "/etc/hosts is provided by the container runtime"),
    pod("dnsConfig", |it| it.dns_config.is_some(), Refused, "/etc/resolv.conf is provided by the container runtime"),
    pod("dnsPolicy: None", |it| it.dns_policy.as_deref() == Some("None"), Refused, "/etc/resolv.conf is provided by the container runtime"),
    pod("setHostnameAsFQDN", |it| it.set_hostname_as_fqdn == Some(true), Refused, "crustlet has no cluster domain"),
    pod("securityContext.seLinuxOptions", |it| it.security_context.as_ref().is_some_and(|it| it.se_linux_options.is_some()), Refused, "crustlet doesn't pass SELinux labels to the container runtime"),
    pod("securityContext.seccompProfile", |it| it.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref()).is_some_and(|it| is_localhost_profile(&it.type_)), Refused, SUPPORTED_PROFILES),
    pod("securityContext.appArmorProfile", |it| it.security_context.as_ref().and_then(|it| it.app_armor_profile.as_ref()).is_some_and(|it| is_localhost_profile(&it.type_)), Refused, SUPPORTED_PROFILES),
    pod("securityContext.supplementalGroupsPolicy", |it| !is_unset_or_one_of(it.security_context.as_ref().and_then(|it| it.supplemental_groups_policy.as_deref()), &["Merge"]), Refused, "the only policy is Merge"),
    pod("securityContext.windowsOptions", |it| it.security_context.as_ref().is_some_and(|it| it.windows_options.is_some()), Refused, "crustlet runs only Linux containers"),
    pod("volumes.emptyDir.medium", |it| empty_dirs(it).any(|it| it.medium.as_deref().is_some_and(|it| !it.is_empty())), Ignored, "the volume is a directory on the node's disk"),
    pod("volumes.emptyDir.sizeLimit", |it| empty_dirs(it).any(|it| it.size_limit.is_some()), Ignored, "crustlet doesn't evict pods"),
    pod("activeDeadlineSeconds", |it| it.active_deadline_seconds.is_some(), Ignored, "the pod runs until it ends or is deleted"),
    pod("imagePullSecrets", |it| is_non_empty(it.image_pull_secrets.as_ref()), Ignored, "images are pulled without credentials"),
    pod("readinessGates", |it| is_non_empty(it.readiness_gates.as_ref()), Ignored, "the pod is ready when its containers are"),
    pod("ephemeralContainers", |it| is_non_empty(it.ephemeral_containers.as_ref()), Ignored, "crustlet doesn't run them; hint: use crustlet exec"),
    container("envFrom", |it| is_non_empty(it.env_from.as_ref()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.configMapKeyRef", |it| value_sources(it).any(|it| it.config_map_key_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.secretKeyRef", |it| value_sources(it).any(|it| it.secret_key_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("env.valueFrom.resourceFieldRef", |it| value_sources(it).any(|it| it.resource_field_ref.is_some()), Refused, SUPPORTED_VALUES),
    container("volumeDevices", |it| is_non_empty(it.volume_devices.as_ref()), Refused, "crustlet doesn't support raw block volumes; hint: use volumeMode: Filesystem"),
    container("volumeMounts.recursiveReadOnly: Enabled", |it| mounts(it).any(|it| it.recursive_read_only.as_deref() == Some("Enabled")), Refused, "crustlet doesn't ask the container runtime for it; hint: use IfPossible"),
    container("volumeMounts.mountPropagation", |it| mounts(it).any(|it| !is_unset_or_one_of(it.mount_propagation.as_deref(), &["None", "HostToContainer", "Bidirectional"])), Refused, "the modes are None, HostToContainer and Bidirectional"),
    container("volumeMounts.mountPropagation: Bidirectional", |it| !is_privileged(it) && mounts(it).any(|it| it.mount_propagation.as_deref() == Some("Bidirectional")), Refused, "only privileged containers may have it"),
    container("lifecycle", |it| it.lifecycle.is_some(), Refused, "crustlet doesn't run lifecycle hooks"),
    container("resources.claims", |it| it.resources.as_ref().is_some_and(|it| is_non_empty(it.claims.as_ref())), Refused, "crustlet doesn't allocate devices"),
    container("resources.limits", |it| it.resources.iter().flat_map(|it| it.limits.iter().flatten()).any(|(it, _)| !["cpu", "memory", "ephemeral-storage"].contains(&it.as_str())), Refused, "crustlet limits only cpu and memory"),
    container("securityContext.seLinuxOptions", |it| it.security_context.as_ref().is_some_and(|it| it.se_linux_options.is_some()), Refused, "crustlet doesn't pass SELinux labels to the container runtime"),
    container("securityContext.seccompProfile", |it| it.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref()).is_some_and(|it| is_localhost_profile(&it.type_)), Refused, SUPPORTED_PROFILES),
    container("securityContext.appArmorProfile", |it| it.security_context.as_ref().and_then(|it| it.app_armor_profile.as_ref()).is_some_and(|it| is_localhost_profile(&it.type_)), Refused, SUPPORTED_PROFILES),
    container("securityContext.procMount: Unmasked", |it| it.security_context.as_ref().is_some_and(|it| it.proc_mount.as_deref() == Some("Unmasked")), Refused, "it requires a user namespace, which crustlet doesn't support"),
    container("livenessProbe, readinessProbe, startupProbe", |it| it.liveness_probe.is_some() || it.readiness_probe.is_some() || it.startup_probe.is_some(), Ignored, "a running container counts as ready"),
    container("ports.hostPort", |it| it.ports.iter().flatten().any(|it| it.host_port.is_some()), Ignored, "only pods with hostNetwork have ports on the node"),
];

const SUPPORTED_VALUES: &str = "crustlet supports only literal values and fields of the pod's metadata; hint: use env with a value";
const SUPPORTED_PROFILES: &str = "the supported profiles are RuntimeDefault and Unconfined";

fn is_non_empty<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|it| !it.is_empty())
}

fn is_unset_or_one_of(value: Option<&str>, known: &[&str]) -> bool {
    value.is_none_or(|value| known.contains(&value))
}

fn is_localhost_profile(profile: &str) -> bool {
    !["RuntimeDefault", "Unconfined"].contains(&profile)
}

fn value_sources(container: &Container) -> impl Iterator<Item = &EnvVarSource> {
    let variables = container.env.iter().flatten();
    variables.filter_map(|it| it.value_from.as_ref())
}

fn empty_dirs(spec: &PodSpec) -> impl Iterator<Item = &EmptyDirVolumeSource> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|it| it.empty_dir.as_ref())
}

fn mounts(container: &Container) -> impl Iterator<Item = &VolumeMount> {
    container.volume_mounts.iter().flatten()
}

pub(super) fn is_privileged(container: &Container) -> bool {
    let context = container.security_context.as_ref();
    context.is_some_and(|it| it.privileged == Some(true))
}

/// Checks that no field of a pod has to be refused. The error names all such fields.
pub(super) fn check(pod: &Pod) -> Result<(), ConfigError> {
    let mut refused = unsupported(pod, Refused);
    // An error's hints come last.
    refused.sort_by_key(|it| it.contains("hint: "));
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
            FieldOf::Pod(is_set) if is_set(&pod.spec) => {
                sentences.push(format!("spec.{field}: {reason}"))
            }
            FieldOf::Pod(_) => {}
            FieldOf::Container(is_set) => {
                let containers = pod.containers().filter(|it| is_set(it));
                sentences.extend(
                    containers.map(|it| format!("container {:?}: {field}: {reason}", it.name)),
                );
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

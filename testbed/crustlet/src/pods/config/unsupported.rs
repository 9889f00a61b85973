//! Fields of a pod that crustlet doesn't support.

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVarSource, PodSpec, VolumeMount,
};

use super::ConfigError;
use crate::objects::Pod;

/// The consequence of an unsupported field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The pod would run wrongly without it, and isn't run.
    Refused,
    /// The pod runs without it, after a warning.
    Ignored,
}

use Verdict::{Ignored, Refused};

/// The object whose field it is.
#[derive(Clone, Copy)]
enum FieldOf {
    Pod(fn(&PodSpec) -> bool),
    Container(fn(&Container) -> bool),
}

struct UnsupportedField {
    /// The field.
    what: &'static str,
    asked: FieldOf,
    verdict: Verdict,
    why: &'static str,
}

const fn pod(
    what: &'static str,
    asked: fn(&PodSpec) -> bool,
    verdict: Verdict,
    why: &'static str,
) -> UnsupportedField {
    UnsupportedField {
        what,
        asked: FieldOf::Pod(asked),
        verdict,
        why,
    }
}

const fn container(
    what: &'static str,
    asked: fn(&Container) -> bool,
    verdict: Verdict,
    why: &'static str,
) -> UnsupportedField {
    UnsupportedField {
        what,
        asked: FieldOf::Container(asked),
        verdict,
        why,
    }
}

/// All of it. What only schedulers and controllers read isn't here: on a node it means nothing.
#[rustfmt::skip]
const TABLE: [UnsupportedField; 38] = [
    pod("hostUsers: false", |it| it.host_users == Some(false), Refused, "crustlet makes no user namespaces"),
    pod("restartPolicy", |it| !among(it.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]), Refused, "there are Always, OnFailure and Never"),
    pod("initContainers.restartPolicy", |it| it.init_containers.iter().flatten().any(|it| it.restart_policy.is_some()), Refused, "crustlet has no sidecars; hint: an ordinary container"),
    pod("os", |it| it.os.as_ref().is_some_and(|it| it.name != "linux"), Refused, "crustlet is on Linux"),
    pod("resources", |it| it.resources.is_some(), Refused, "crustlet limits containers alone"),
    pod("resourceClaims", |it| some(it.resource_claims.as_ref()), Refused, "crustlet allocates no devices"),
    pod("hostAliases", |it| some(it.host_aliases.as_ref()), Refused, "/etc/hosts is the container runtime's"),
    pod("dnsConfig", |it| it.dns_config.is_some(), Refused, "/etc/resolv.conf is the container runtime's"),
    pod("dnsPolicy: None", |it| it.dns_policy.as_deref() == Some("None"), Refused, "/etc/resolv.conf is the container runtime's"),
    pod("setHostnameAsFQDN", |it| it.set_hostname_as_fqdn == Some(true), Refused, "crustlet has no domain"),
    pod("securityContext.seLinuxOptions", |it| it.security_context.as_ref().is_some_and(|it| it.se_linux_options.is_some()), Refused, "crustlet passes no labels on"),
    pod("securityContext.seccompProfile", |it| it.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref()).is_some_and(|it| is_local(&it.type_)), Refused, ONLY),
    pod("securityContext.appArmorProfile", |it| it.security_context.as_ref().and_then(|it| it.app_armor_profile.as_ref()).is_some_and(|it| is_local(&it.type_)), Refused, ONLY),
    pod("securityContext.supplementalGroupsPolicy", |it| !among(it.security_context.as_ref().and_then(|it| it.supplemental_groups_policy.as_deref()), &["Merge"]), Refused, "there is Merge"),
    pod("securityContext.windowsOptions", |it| it.security_context.as_ref().is_some_and(|it| it.windows_options.is_some()), Refused, "crustlet is on Linux"),
    pod("volumes.emptyDir.medium", |it| empty_dirs(it).any(|it| it.medium.as_deref().is_some_and(|it| !it.is_empty())), Ignored, "it is a directory on the node's disk"),
    pod("volumes.emptyDir.sizeLimit", |it| empty_dirs(it).any(|it| it.size_limit.is_some()), Ignored, "crustlet evicts nobody"),
    pod("activeDeadlineSeconds", |it| it.active_deadline_seconds.is_some(), Ignored, "the pod runs until it ends or is deleted"),
    pod("imagePullSecrets", |it| some(it.image_pull_secrets.as_ref()), Ignored, "images are pulled without credentials"),
    pod("readinessGates", |it| some(it.readiness_gates.as_ref()), Ignored, "the pod is ready when its containers are"),
    pod("ephemeralContainers", |it| some(it.ephemeral_containers.as_ref()), Ignored, "hint: crustlet exec"),
    container("envFrom", |it| some(it.env_from.as_ref()), Refused, LITERAL),
    container("env.valueFrom.configMapKeyRef", |it| values(it).any(|it| it.config_map_key_ref.is_some()), Refused, LITERAL),
    container("env.valueFrom.secretKeyRef", |it| values(it).any(|it| it.secret_key_ref.is_some()), Refused, LITERAL),
    container("env.valueFrom.resourceFieldRef", |it| values(it).any(|it| it.resource_field_ref.is_some()), Refused, LITERAL),
    container("volumeDevices", |it| some(it.volume_devices.as_ref()), Refused, "crustlet has no raw block volumes; hint: volumeMode: Filesystem"),
    container("volumeMounts.recursiveReadOnly: Enabled", |it| mounts(it).any(|it| it.recursive_read_only.as_deref() == Some("Enabled")), Refused, "the container runtime isn't asked for it; hint: IfPossible"),
    container("volumeMounts.mountPropagation", |it| mounts(it).any(|it| !among(it.mount_propagation.as_deref(), &["None", "HostToContainer", "Bidirectional"])), Refused, "there are None, HostToContainer and Bidirectional"),
    container("volumeMounts.mountPropagation: Bidirectional", |it| !is_privileged(it) && mounts(it).any(|it| it.mount_propagation.as_deref() == Some("Bidirectional")), Refused, "it is for privileged containers"),
    container("lifecycle", |it| it.lifecycle.is_some(), Refused, "crustlet runs no hooks"),
    container("resources.claims", |it| it.resources.as_ref().is_some_and(|it| some(it.claims.as_ref())), Refused, "crustlet allocates no devices"),
    container("resources.limits", |it| it.resources.iter().flat_map(|it| it.limits.iter().flatten()).any(|(it, _)| !["cpu", "memory", "ephemeral-storage"].contains(&it.as_str())), Refused, "crustlet allocates cpu and memory"),
    container("securityContext.seLinuxOptions", |it| it.security_context.as_ref().is_some_and(|it| it.se_linux_options.is_some()), Refused, "crustlet passes no labels on"),
    container("securityContext.seccompProfile", |it| it.security_context.as_ref().and_then(|it| it.seccomp_profile.as_ref()).is_some_and(|it| is_local(&it.type_)), Refused, ONLY),
    container("securityContext.appArmorProfile", |it| it.security_context.as_ref().and_then(|it| it.app_armor_profile.as_ref()).is_some_and(|it| is_local(&it.type_)), Refused, ONLY),
    container("securityContext.procMount: Unmasked", |it| it.security_context.as_ref().is_some_and(|it| it.proc_mount.as_deref() == Some("Unmasked")), Refused, "it is for pods in user namespaces, which crustlet doesn't make"),
    container("livenessProbe, readinessProbe, startupProbe", |it| it.liveness_probe.is_some() || it.readiness_probe.is_some() || it.startup_probe.is_some(), Ignored, "a container that runs is ready"),
    container("ports.hostPort", |it| it.ports.iter().flatten().any(|it| it.host_port.is_some()), Ignored, "only what is in the node's network (hostNetwork) has its ports"),
];

const LITERAL: &str =
    "crustlet gives literal values and fields of the pod's metadata; hint: env with a value";
const ONLY: &str = "there are RuntimeDefault and Unconfined";

fn some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|it| !it.is_empty())
}

/// Nothing said is the first of them.
fn among(value: Option<&str>, known: &[&str]) -> bool {
    value.is_none_or(|value| known.contains(&value))
}

fn is_local(profile: &str) -> bool {
    !["RuntimeDefault", "Unconfined"].contains(&profile)
}

fn values(container: &Container) -> impl Iterator<Item = &EnvVarSource> {
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

/// Refuses what the pod would run wrongly without; all of it is told at once.
pub(super) fn check(pod: &Pod) -> Result<(), ConfigError> {
    let mut refused = asked(pod, Refused);
    // Hints come last in a sentence.
    refused.sort_by_key(|it| it.contains("hint: "));
    if refused.is_empty() {
        Ok(())
    } else {
        Err(ConfigError::Unsupported(refused))
    }
}

/// Returns the fields of a pod that are ignored, each as a sentence.
pub(crate) fn ignored(pod: &Pod) -> Vec<String> {
    asked(pod, Ignored)
}

fn asked(pod: &Pod, verdict: Verdict) -> Vec<String> {
    let mut told = Vec::new();
    for row in TABLE.iter().filter(|row| row.verdict == verdict) {
        let UnsupportedField { what, why, .. } = row;
        match row.asked {
            FieldOf::Pod(asked) if asked(&pod.spec) => told.push(format!("spec.{what}: {why}")),
            FieldOf::Pod(_) => {}
            FieldOf::Container(asked) => {
                let containers = pod.containers().filter(|it| asked(it));
                told.extend(containers.map(|it| format!("container {:?}: {what}: {why}", it.name)));
            }
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_all_of_the_table() {
        let document = include_str!("../../../../../docs/crustlet.md");
        let (_, rest) = document.split_once("\n| refused |").expect("a table");
        let (refused, rest) = rest.split_once("\n| ignored |").expect("another");
        let (ignored, _) = rest.split_once("\n\n").expect("its end");
        for UnsupportedField { what, verdict, .. } in TABLE {
            let (right, wrong) = match verdict {
                Refused => (refused, ignored),
                Ignored => (ignored, refused),
            };
            let what = format!("`{what}`");
            assert!(right.contains(&what) && !wrong.contains(&what), "{what}");
        }
    }
}

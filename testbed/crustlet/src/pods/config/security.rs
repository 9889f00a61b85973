//! The users and privileges of a pod's processes.

use crust_proto::cri::v1::security_profile::ProfileType;
use crust_proto::cri::v1::{
    Capability, Image, Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext,
    NamespaceMode, NamespaceOption, SecurityProfile,
};
use k8s_openapi::api::core::v1::{Container, PodSecurityContext, PodSpec};

use super::ConfigError;
use super::unsupported::is_privileged;
use crate::objects::Pod;

/// kubelet's `procMount: Default`.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// The sandbox's.
pub(super) fn sandbox(pod: &Pod) -> LinuxSandboxSecurityContext {
    let none = PodSecurityContext::default();
    let context = pod.spec.security_context.as_ref().unwrap_or(&none);
    let user = context.run_as_user;
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&pod.spec)),
        run_as_user: number(user),
        // A group without a user is an error of the CRI's.
        run_as_group: number(context.run_as_group.filter(|_| user.is_some())),
        supplemental_groups: groups(context),
        privileged: pod.containers().any(is_privileged),
        // Whatever the pod says: nothing of its own runs there.
        seccomp: Some(profile("RuntimeDefault")),
        apparmor: context
            .app_armor_profile
            .as_ref()
            .map(|it| profile(&it.type_)),
        readonly_rootfs: false,
    }
}

/// A container's, which goes before its pod's.
pub(super) fn container(
    pod: &Pod,
    container: &Container,
    image: &Image,
) -> Result<LinuxContainerSecurityContext, ConfigError> {
    let none = PodSecurityContext::default();
    let pods = pod.spec.security_context.as_ref().unwrap_or(&none);
    let own = container.security_context.clone().unwrap_or_default();
    let said = own.run_as_user.or(pods.run_as_user);
    let user = said.or_else(|| images_user(image));
    if own.run_as_non_root.or(pods.run_as_non_root) == Some(true) {
        is_not_root(said, user, image).map_err(|reason| ConfigError::Root {
            container: container.name.clone(),
            reason,
        })?;
    }
    let seccomp = own
        .seccomp_profile
        .as_ref()
        .or(pods.seccomp_profile.as_ref());
    let apparmor = own
        .app_armor_profile
        .as_ref()
        .or(pods.app_armor_profile.as_ref());
    let capabilities = own.capabilities.map(|it| Capability {
        add_capabilities: it.add.unwrap_or_default(),
        drop_capabilities: it.drop.unwrap_or_default(),
    });
    let paths = |paths: &[&str]| paths.iter().map(|&it| it.to_owned()).collect();
    Ok(LinuxContainerSecurityContext {
        capabilities,
        privileged: own.privileged == Some(true),
        namespace_options: Some(namespaces(&pod.spec)),
        run_as_user: number(user),
        run_as_username: if user.is_none() {
            image.username.clone()
        } else {
            String::new()
        },
        run_as_group: number(own.run_as_group.or(pods.run_as_group)),
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(pods),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED),
        readonly_paths: paths(&READ_ONLY),
        seccomp: Some(seccomp.map_or_else(|| profile("Unconfined"), |it| profile(&it.type_))),
        apparmor: apparmor.map(|it| profile(&it.type_)),
    })
}

/// Its number. One that has neither that nor a name is root's; the CRI wants a user beside a group.
fn images_user(image: &Image) -> Option<i64> {
    let number = image.uid.map(|it| it.value);
    number.or_else(|| image.username.is_empty().then_some(0))
}

fn is_not_root(said: Option<i64>, user: Option<i64>, image: &Image) -> Result<(), String> {
    match (said, user) {
        (Some(0), _) => Err("runAsUser is 0".to_owned()),
        (None, Some(0)) => Err("its image runs as root".to_owned()),
        (_, Some(_)) => Ok(()),
        (_, None) => Err(format!(
            "its image runs as {:?}, who may be root; hint: runAsUser",
            image.username
        )),
    }
}

fn namespaces(spec: &PodSpec) -> NamespaceOption {
    let nodes_or = |is_nodes: Option<bool>, other: NamespaceMode| match is_nodes {
        Some(true) => NamespaceMode::Node.into(),
        _ => other.into(),
    };
    let pid = match spec.share_process_namespace {
        Some(true) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    NamespaceOption {
        network: nodes_or(spec.host_network, NamespaceMode::Pod),
        pid: nodes_or(spec.host_pid, pid),
        ipc: nodes_or(spec.host_ipc, NamespaceMode::Pod),
        ..NamespaceOption::default()
    }
}

/// fsGroup is a group of its processes', besides being the volumes'.
fn groups(context: &PodSecurityContext) -> Vec<i64> {
    let more = context.supplemental_groups.iter().flatten();
    context.fs_group.iter().chain(more).copied().collect()
}

fn profile(kind: &str) -> SecurityProfile {
    let kind = match kind {
        "Unconfined" => ProfileType::Unconfined,
        _ => ProfileType::RuntimeDefault,
    };
    SecurityProfile {
        profile_type: kind.into(),
        ..SecurityProfile::default()
    }
}

fn number(value: Option<i64>) -> Option<Int64Value> {
    value.map(|value| Int64Value { value })
}

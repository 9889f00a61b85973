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

/// The paths that kubelet masks with `procMount: Default`.
const MASKED_PATHS: [&str; 12] = [
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
/// The paths that kubelet makes read-only with `procMount: Default`.
const READ_ONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Returns the security context of a pod's sandbox.
pub(super) fn sandbox(pod: &Pod) -> LinuxSandboxSecurityContext {
    let default_context = PodSecurityContext::default();
    let context = pod.spec.security_context.as_ref();
    let context = context.unwrap_or(&default_context);
    let user = context.run_as_user;
    LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&pod.spec)),
        run_as_user: number(user),
        // The CRI refuses a group without a user.
        run_as_group: number(context.run_as_group.filter(|_| user.is_some())),
        supplemental_groups: groups(context),
        privileged: pod.containers().any(is_privileged),
        // The pod's own profile doesn't apply to the sandbox, because none of the pod's programs run in it.
        seccomp: Some(profile("RuntimeDefault")),
        apparmor: context
            .app_armor_profile
            .as_ref()
            .map(|app_armor| profile(&app_armor.type_)),
        readonly_rootfs: false,
    }
}

/// Returns the security context of a container. Its own settings override those of the pod.
pub(super) fn container(
    pod: &Pod,
    container: &Container,
    image: &Image,
) -> Result<LinuxContainerSecurityContext, ConfigError> {
    let default_context = PodSecurityContext::default();
    let pod_context = pod.spec.security_context.as_ref();
    let pod_context = pod_context.unwrap_or(&default_context);
    let context = container.security_context.clone().unwrap_or_default();
    let configured_user = context.run_as_user.or(pod_context.run_as_user);
    let user = configured_user.or_else(|| image_user(image));
    if context.run_as_non_root.or(pod_context.run_as_non_root) == Some(true) {
        check_not_root(configured_user, user, image).map_err(|reason| ConfigError::RunsAsRoot {
            container: container.name.clone(),
            reason,
        })?;
    }
    let seccomp = context
        .seccomp_profile
        .as_ref()
        .or(pod_context.seccomp_profile.as_ref());
    let apparmor = context
        .app_armor_profile
        .as_ref()
        .or(pod_context.app_armor_profile.as_ref());
    let capabilities = context.capabilities.map(|capabilities| Capability {
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
    });
    let paths = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
    Ok(LinuxContainerSecurityContext {
        capabilities,
        privileged: context.privileged == Some(true),
        namespace_options: Some(namespaces(&pod.spec)),
        run_as_user: number(user),
        run_as_username: if user.is_none() {
            image.username.clone()
        } else {
            String::new()
        },
        run_as_group: number(context.run_as_group.or(pod_context.run_as_group)),
        readonly_rootfs: context.read_only_root_filesystem == Some(true),
        supplemental_groups: groups(pod_context),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READ_ONLY_PATHS),
        seccomp: Some(
            seccomp.map_or_else(|| profile("Unconfined"), |seccomp| profile(&seccomp.type_)),
        ),
        apparmor: apparmor.map(|apparmor| profile(&apparmor.type_)),
    })
}

/// Returns the user of an image as a number. An image without a user runs as root, which has to be set because the CRI
/// refuses a group without a user. `None` if the image's user is a name.
fn image_user(image: &Image) -> Option<i64> {
    let number = image.uid.map(|uid| uid.value);
    number.or_else(|| image.username.is_empty().then_some(0))
}

fn check_not_root(
    configured_user: Option<i64>,
    user: Option<i64>,
    image: &Image,
) -> Result<(), String> {
    match (configured_user, user) {
        (Some(0), _) => Err("runAsUser is 0".to_owned()),
        (None, Some(0)) => Err("the image runs as root".to_owned()),
        (_, Some(_)) => Ok(()),
        (_, None) => Err(format!(
            "the image runs as {:?}, which may be root; hint: set runAsUser",
            image.username
        )),
    }
}

fn namespaces(spec: &PodSpec) -> NamespaceOption {
    let node_or = |shares_with_node: Option<bool>, other: NamespaceMode| match shares_with_node {
        Some(true) => NamespaceMode::Node.into(),
        _ => other.into(),
    };
    let pid = match spec.share_process_namespace {
        Some(true) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    NamespaceOption {
        network: node_or(spec.host_network, NamespaceMode::Pod),
        pid: node_or(spec.host_pid, pid),
        ipc: node_or(spec.host_ipc, NamespaceMode::Pod),
        ..NamespaceOption::default()
    }
}

/// Returns the supplementary groups of the containers' processes. The volumes' fsGroup is one of them.
fn groups(context: &PodSecurityContext) -> Vec<i64> {
    let supplemental = context.supplemental_groups.iter().flatten();
    let groups = context.fs_group.iter().chain(supplemental);
    groups.copied().collect()
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

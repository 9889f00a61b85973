//! Tests that the configurations are those that kubelet would send.

use std::path::{Path, PathBuf};

use crust_proto::cri::v1::{
    ContainerConfig, Image, Int64Value, LinuxContainerSecurityContext, NamespaceMode,
    PodSandboxConfig,
};

use super::*;
use crate::objects::manifest;
use crate::pods::fixture::{at_second, pod};
use crate::pods::{StartContainer, labels};

fn node() -> NodeInfo {
    NodeInfo {
        name: "node-1".to_owned(),
        owner: "id-1".to_owned(),
        logs: "/logs".into(),
        cgroup_parent: "/pods".to_owned(),
        memory: 1 << 30,
    }
}

fn sandbox_config(spec: &str) -> PodSandboxConfig {
    sandbox(&pod(spec), &node(), 2, at_second(7)).expect(spec)
}

/// Returns a pod that has one container `app` with these fields.
fn pod_with_app(pod_fields: &str, fields: &str) -> Pod {
    pod(&format!(
        "{{{pod_fields} containers: [{{name: app, image: i, {fields}}}], volumes: [{{name: v, emptyDir: {{}}}}]}}"
    ))
}

fn try_container_config(
    pod_fields: &str,
    fields: &str,
    image: &Image,
    sources: &[MountSource],
) -> Result<ContainerConfig, ConfigError> {
    let pod = pod_with_app(pod_fields, fields);
    let step = StartContainer {
        name: "app".to_owned(),
        attempt: 3,
        sandbox: "s0".to_owned(),
        sandbox_attempt: 0,
        backoff: std::time::Duration::from_secs(20),
    };
    let new = NewContainer {
        container: &pod.spec.containers[0],
        step: &step,
        image,
        sources,
    };
    container(&pod, &node(), new)
}

fn container_config(pod_fields: &str, fields: &str) -> ContainerConfig {
    try_container_config(pod_fields, fields, &Image::default(), &[]).expect(fields)
}

fn security(pod_fields: &str, fields: &str) -> LinuxContainerSecurityContext {
    let linux = container_config(pod_fields, fields).linux.unwrap();
    linux.security_context.unwrap()
}

#[test]
fn a_sandbox_has_the_labels_that_identify_its_pod() {
    let config =
        sandbox_config("{terminationGracePeriodSeconds: 9, containers: [{name: app, image: i}]}");
    let metadata = config.metadata.unwrap();
    assert_eq!((metadata.name.as_str(), metadata.attempt), ("web", 2));
    for (label, expected) in [
        ("app", "shop"),
        (labels::POD_NAME, "web"),
        (labels::POD_NAMESPACE, "default"),
        (labels::POD_UID, "u"),
        (labels::OWNER, "id-1"),
        (labels::NODE, "node-1"),
    ] {
        assert_eq!(config.labels[label], expected, "{label}");
    }
    assert_eq!(config.annotations[labels::GRACE], "9");
    assert_eq!(config.annotations[labels::STARTED], "7000000000");
    assert_eq!(config.log_directory, "/logs/default_web_u");
    assert_eq!(config.hostname, "web");
    assert_eq!(config.linux.unwrap().cgroup_parent, "/pods");
}

/// A pod that could take another pod's labels would be stopped in place of that pod.
#[test]
fn a_pod_cannot_override_the_labels_that_identify_it() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u, labels: {dev.crust.crustlet: x, \
        io.kubernetes.pod.uid: x}, annotations: {dev.crust.crustlet/grace: x}}\nspec: {containers: [{name: app, image: i}]}";
    let manifest::Object::Pod(pod) = manifest::read(text).unwrap().remove(0).object else {
        panic!("{text}");
    };
    let config = sandbox(&pod, &node(), 0, at_second(0)).unwrap();
    assert_eq!(config.labels[labels::OWNER], "id-1");
    assert_eq!(config.labels[labels::POD_UID], "u");
    assert_eq!(config.annotations[labels::GRACE], "30");
}

#[test]
fn namespaces_are_those_of_the_pod_by_default() {
    use NamespaceMode::{Container, Node, Pod};
    for (spec, network, pid, ipc) in [
        ("", Pod, Container, Pod),
        ("hostNetwork: true,", Node, Container, Pod),
        ("shareProcessNamespace: true,", Pod, Pod, Pod),
        ("hostPID: true, hostIPC: true,", Pod, Node, Node),
    ] {
        let config = sandbox_config(&format!("{{{spec} containers: [{{name: app, image: i}}]}}"));
        let security = config.linux.unwrap().security_context.unwrap();
        let options = security.namespace_options.unwrap();
        let found = (options.network(), options.pid(), options.ipc());
        assert_eq!(found, (network, pid, ipc), "{spec}");
        assert_eq!(config.hostname.is_empty(), network == Node, "{spec}");
        let containers = container_config(spec, "").linux.unwrap();
        let containers = containers.security_context.unwrap().namespace_options;
        assert_eq!(containers, Some(options), "{spec}");
    }
}

#[test]
fn hostnames_are_truncated() {
    for (setting, expected) in [
        (String::new(), "web".to_owned()),
        (format!("hostname: {},", "h".repeat(64)), "h".repeat(63)),
        (format!("hostname: {}-h,", "h".repeat(62)), "h".repeat(62)),
    ] {
        let config = sandbox_config(&format!(
            "{{{setting} containers: [{{name: app, image: i}}]}}"
        ));
        assert_eq!(config.hostname, expected);
    }
}

#[test]
fn a_containers_security_context_overrides_its_pods() {
    let pod_context = "securityContext: {runAsUser: 5, runAsGroup: 6, fsGroup: 7, supplementalGroups: [8, 9], \
        seccompProfile: {type: RuntimeDefault}},";
    let defaults = security("", "");
    let number = |value| Some(Int64Value { value });
    assert_eq!(defaults.run_as_user, number(0), "an image without a user");
    assert_eq!(defaults.seccomp.unwrap().profile_type, 1);
    assert!(!defaults.no_new_privs && !defaults.privileged && !defaults.readonly_rootfs);
    assert!(defaults.masked_paths.contains(&"/proc/kcore".to_owned()));
    let inherited = security(pod_context, "");
    assert_eq!(
        (inherited.run_as_user, inherited.run_as_group),
        (number(5), number(6))
    );
    assert_eq!(inherited.supplemental_groups, [7, 8, 9]);
    assert_eq!(inherited.seccomp.unwrap().profile_type, 0);
    let overridden = security(
        pod_context,
        "securityContext: {runAsUser: 1, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, \
         seccompProfile: {type: Unconfined}, capabilities: {add: [SYS_TIME], drop: [ALL]}}",
    );
    assert_eq!(
        (overridden.run_as_user, overridden.run_as_group),
        (number(1), number(6))
    );
    assert_eq!(overridden.seccomp.unwrap().profile_type, 1);
    assert!(overridden.no_new_privs && overridden.readonly_rootfs);
    let capabilities = overridden.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["SYS_TIME"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
}

#[test]
fn a_sandbox_is_privileged_with_any_privileged_container() {
    let spec = |pod_fields: &str| {
        format!(
            "{{{pod_fields} containers: [{{name: app, image: i, securityContext: {{privileged: true}}}}]}}"
        )
    };
    let security = |spec: &str| {
        sandbox_config(spec)
            .linux
            .unwrap()
            .security_context
            .unwrap()
    };
    let without_user = security(&spec(
        "securityContext: {runAsGroup: 6, sysctls: [{name: a, value: b}]},",
    ));
    assert!(without_user.privileged);
    let ids = (without_user.run_as_user, without_user.run_as_group);
    assert_eq!(ids, (None, None), "the CRI refuses a group without a user");
    assert_eq!(without_user.seccomp.unwrap().profile_type, 0);
    let with_user = security(&spec("securityContext: {runAsGroup: 6, runAsUser: 5},"));
    assert_eq!(with_user.run_as_group, Some(Int64Value { value: 6 }));
}

#[test]
fn run_as_non_root_refuses_a_user_that_may_be_root() {
    let image = |uid: Option<i64>, username: &str| Image {
        uid: uid.map(|value| Int64Value { value }),
        username: username.to_owned(),
        ..Image::default()
    };
    for (setting, image, expected) in [
        ("", image(None, ""), Some("the image runs as root")),
        ("", image(Some(0), ""), Some("the image runs as root")),
        ("", image(Some(5), ""), None),
        ("", image(None, "www"), Some("runs as \"www\"")),
        (", runAsUser: 5", image(None, ""), None),
        (", runAsUser: 0", image(Some(5), ""), Some("runAsUser is 0")),
    ] {
        let fields = format!("securityContext: {{runAsNonRoot: true{setting}}}");
        let error = try_container_config("", &fields, &image, &[]).err();
        let error = error.map(|error| error.to_string());
        match (&error, expected) {
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (error, expected) => assert_eq!(error.as_deref(), expected, "{setting}"),
        }
    }
}

#[test]
fn earlier_variables_are_expanded() {
    let config = container_config(
        "",
        "env: [{name: A, value: a}, {name: B, value: $(A)-$$(A)-$(C)}, {name: C, value: c}, {name: A, value: z}, \
         {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, \
         {name: APP, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}, \
         {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}], \
         command: [$(A), $(MISSING), \"$(\", $, x$], args: [$(NODE)/$(NAME)], workingDir: /w, tty: true, stdin: true",
    );
    let environment: Vec<String> = config
        .envs
        .iter()
        .map(|env| format!("{}={}", env.key, env.value))
        .collect();
    assert_eq!(
        environment,
        [
            "A=z",
            "B=a-$(A)-$(C)",
            "C=c",
            "NAME=web",
            "APP=shop",
            "NODE=node-1"
        ]
    );
    assert_eq!(config.command, ["z", "$(MISSING)", "$(", "$", "x$"]);
    assert_eq!(config.args, ["node-1/web"]);
    assert_eq!(config.log_path, "app/3.log");
    assert_eq!(config.annotations[labels::RESTARTS], "3");
    assert_eq!(config.annotations[labels::BACKOFF], "20");
    assert!(config.tty && config.stdin && !config.stdin_once);
}

#[test]
fn a_mount_is_read_only_if_its_source_or_its_volume_mount_is() {
    let source = |read_only| MountSource {
        host_path: "/vol".into(),
        read_only,
    };
    for (setting, sources, expected) in [
        ("", source(false), false),
        (", readOnly: true", source(false), true),
        ("", source(true), true),
    ] {
        let fields = format!("volumeMounts: [{{name: v, mountPath: data{setting}}}]");
        let config = try_container_config("", &fields, &Image::default(), &[sources]).unwrap();
        let mount = &config.mounts[0];
        assert_eq!(mount.container_path, "/data");
        assert_eq!(mount.host_path, "/vol");
        assert_eq!(mount.readonly, expected, "{setting}");
    }
    let fields = "volumeMounts: [{name: v, mountPath: /data}]";
    let error = try_container_config("", fields, &Image::default(), &[]).unwrap_err();
    assert!(
        error.to_string().contains("the volume has no source"),
        "{error}"
    );
}

#[test]
fn resources_are_computed_as_by_kubelet() {
    for (resources, quota, shares, memory, oom) in [
        ("", 0, 2, 0, 1000),
        (
            "limits: {cpu: 500m, memory: 512Mi}",
            50_000,
            512,
            512 << 20,
            -997,
        ),
        ("requests: {cpu: 1500m, memory: 256Mi}", 0, 1536, 0, 750),
        (
            "limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}",
            200_000,
            1024,
            1 << 30,
            3,
        ),
        ("limits: {cpu: 1m}", 1000, 2, 0, 999),
        ("requests: {cpu: 999999}", 0, 262_144, 0, 999),
    ] {
        let config = container_config("", &format!("resources: {{{resources}}}"));
        let found = config.linux.unwrap().resources.unwrap();
        assert_eq!(found.cpu_quota, quota, "{resources}");
        assert_eq!(found.cpu_period, if quota == 0 { 0 } else { 100_000 });
        assert_eq!(found.cpu_shares, shares, "{resources}");
        assert_eq!(found.memory_limit_in_bytes, memory, "{resources}");
        assert_eq!(found.oom_score_adj, oom, "{resources}");
    }
    let error = try_container_config(
        "",
        "resources: {limits: {cpu: many}}",
        &Image::default(),
        &[],
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("cpu: \"many\" is not a valid quantity"),
        "{error}"
    );
}

#[test]
fn a_subpath_is_below_its_volume() {
    let subpath_of = |mount: &str, env: &str| {
        let pod = pod_with_app(
            "",
            &format!("env: [{env}], volumeMounts: [{{name: v, mountPath: /v, {mount}}}]"),
        );
        let container = &pod.spec.containers[0];
        let mount = &container.volume_mounts.as_ref().unwrap()[0];
        subpath(&pod, &node(), container, mount)
    };
    let path = |path: &str| Some(PathBuf::from(path));
    for (mount, expected) in [
        ("", None),
        ("subPath: ''", None),
        ("subPath: .", None),
        ("subPath: a/./b//c/", path("a/b/c")),
        ("subPath: $(A)", path("$(A)")),
        ("subPath: ..a", path("..a")),
        ("subPathExpr: $(A)/$(NAME)/$$(A)", path("x/web/$(A)")),
    ] {
        let env =
            "{name: A, value: x}, {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}";
        assert_eq!(subpath_of(mount, env), Ok(expected), "{mount}");
    }
    for (mount, env, expected) in [
        ("subPath: /etc", "", "isn't relative"),
        ("subPath: a/../../b", "", "contains `..`"),
        ("subPathExpr: $(A)", "", "has no env variable \"A\""),
        (
            "subPathExpr: $(A)/b",
            "{name: A, value: ..}",
            "contains `..`",
        ),
        (
            "subPathExpr: $(A)",
            "{name: A, value: /etc}",
            "isn't relative",
        ),
        ("subPath: a, subPathExpr: b", "", "both"),
        ("subPath: \"a\\0\"", "", "NUL"),
    ] {
        let error = subpath_of(mount, env).expect_err(mount).to_string();
        assert!(error.contains(expected), "{mount}: {error}");
        assert!(
            error.contains("container \"app\": volumeMounts \"v\""),
            "{error}"
        );
    }
}

#[test]
fn unsupported_fields_are_refused_or_warned_about() {
    let refused = [
        ("hostUsers: false,", "", "spec.hostUsers: false"),
        ("restartPolicy: Sometimes,", "", "spec.restartPolicy"),
        ("dnsPolicy: None,", "", "spec.dnsPolicy"),
        (
            "initContainers: [{name: i, image: i, restartPolicy: Always}],",
            "",
            "sidecars",
        ),
        (
            "securityContext: {seccompProfile: {type: Localhost}},",
            "",
            "RuntimeDefault",
        ),
        (
            "securityContext: {supplementalGroupsPolicy: Strict},",
            "",
            "Merge",
        ),
        (
            "",
            "lifecycle: {preStop: {exec: {command: [x]}}}",
            "\"app\": lifecycle",
        ),
        ("", "envFrom: [{configMapRef: {name: c}}]", "envFrom"),
        (
            "",
            "env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]",
            "secretKeyRef",
        ),
        (
            "",
            "env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]",
            "status.podIP",
        ),
        (
            "",
            "env: [{name: A=B, value: x}]",
            "the name is empty or contains",
        ),
        (
            "",
            "volumeDevices: [{name: v, devicePath: /d}]",
            "volumeDevices",
        ),
        (
            "",
            "volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]",
            "privileged",
        ),
        (
            "",
            "volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]",
            "subPath",
        ),
        (
            "",
            "resources: {limits: {hugepages-2Mi: 1}}",
            "resources.limits",
        ),
        ("", "securityContext: {procMount: Unmasked}", "procMount"),
        (
            "",
            "securityContext: {seLinuxOptions: {level: s0}}",
            "seLinuxOptions",
        ),
    ];
    for (pod_fields, fields, expected) in refused {
        let error = check(&pod_with_app(pod_fields, fields), &node());
        let error = error.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let probed = pod_with_app(
        "activeDeadlineSeconds: 5,",
        "livenessProbe: {exec: {command: [x]}}, ports: [{containerPort: 1, hostPort: 2}]",
    );
    assert_eq!(check(&probed, &node()), Ok(()));
    let in_memory = pod(
        "{containers: [{name: app, image: i}], volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]}",
    );
    let ignored_volumes = ignored(&in_memory).join("; ");
    for field in [
        "spec.volumes.emptyDir.medium: ",
        "spec.volumes.emptyDir.sizeLimit: ",
    ] {
        assert!(ignored_volumes.contains(field), "{ignored_volumes}");
    }
    let ignored = ignored(&probed).join("; ");
    for expected in ["activeDeadlineSeconds", "livenessProbe", "hostPort"] {
        assert!(ignored.contains(expected), "{ignored}");
    }
    let common = pod_with_app(
        "dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: x, nodeSelector: {a: b},",
        "volumeMounts: [{name: v, mountPath: /v, mountPropagation: None, recursiveReadOnly: Disabled}], \
         terminationMessagePath: /dev/termination-log, resources: {limits: {cpu: 1, ephemeral-storage: 1Gi}}",
    );
    assert_eq!(check(&common, &node()), Ok(()));
    assert_eq!(super::ignored(&common), Vec::<String>::new());
}

#[test]
fn the_handler_is_that_of_the_runtime_class() {
    let class =
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: crust}\nhandler: h";
    let mut objects = Objects::default();
    let with_class = pod("{runtimeClassName: crust, containers: [{name: app, image: i}]}");
    let error = runtime_handler(&objects, &with_class)
        .unwrap_err()
        .to_string();
    assert!(error.contains("runtimeclass crust not found"), "{error}");
    objects.insert(manifest::read(class).unwrap().remove(0));
    assert_eq!(runtime_handler(&objects, &with_class), Ok("h".to_owned()));
    let without = pod("{containers: [{name: app, image: i}]}");
    assert_eq!(runtime_handler(&objects, &without), Ok(String::new()));
}

#[test]
fn paths_have_to_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let not_utf8 = Path::new(std::ffi::OsStr::from_bytes(b"/logs\xff"));
    let node = NodeInfo {
        logs: not_utf8.to_owned(),
        ..node()
    };
    let pod = pod("{containers: [{name: app, image: i}]}");
    let error = sandbox(&pod, &node, 0, at_second(0)).unwrap_err();
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

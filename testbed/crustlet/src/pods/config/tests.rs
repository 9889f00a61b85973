//! Tests of the configurations, against what kubelet would write.

use std::path::{Path, PathBuf};

use crust_proto::cri::v1::{
    ContainerConfig, Image, Int64Value, LinuxContainerSecurityContext, NamespaceMode,
    PodSandboxConfig,
};

use super::*;
use crate::objects::manifest;
use crate::pods::fixture::{at, pod};
use crate::pods::{StartContainer, labels};

fn node() -> NodeFacts {
    NodeFacts {
        name: "node-1".to_owned(),
        owner: "id-1".to_owned(),
        logs: "/logs".into(),
        cgroup_parent: "/pods".to_owned(),
        memory: 1 << 30,
    }
}

fn a_sandbox(spec: &str) -> PodSandboxConfig {
    sandbox(&pod(spec), &node(), 2, at(7)).expect(spec)
}

/// With one container `app` that has these fields.
fn with_app(pods: &str, fields: &str) -> Pod {
    pod(&format!(
        "{{{pods} containers: [{{name: app, image: i, {fields}}}], volumes: [{{name: v, emptyDir: {{}}}}]}}"
    ))
}

fn try_container(
    pods: &str,
    fields: &str,
    image: &Image,
    sources: &[Source],
) -> Result<ContainerConfig, ConfigError> {
    let pod = with_app(pods, fields);
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

fn a_container(pods: &str, fields: &str) -> ContainerConfig {
    try_container(pods, fields, &Image::default(), &[]).expect(fields)
}

fn security(pods: &str, fields: &str) -> LinuxContainerSecurityContext {
    let linux = a_container(pods, fields).linux.unwrap();
    linux.security_context.unwrap()
}

#[test]
fn a_sandbox_is_found_again_by_what_it_is_labelled() {
    let config =
        a_sandbox("{terminationGracePeriodSeconds: 9, containers: [{name: app, image: i}]}");
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

/// A pod that says it were another's would be stopped as that one.
#[test]
fn what_a_pod_says_of_itself_does_not_count_for_what_it_is() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, uid: u, labels: {dev.crust.crustlet: x, \
        io.kubernetes.pod.uid: x}, annotations: {dev.crust.crustlet/grace: x}}\nspec: {containers: [{name: app, image: i}]}";
    let manifest::Object::Pod(pod) = manifest::read(text).unwrap().remove(0).object else {
        panic!("{text}");
    };
    let config = sandbox(&pod, &node(), 0, at(0)).unwrap();
    assert_eq!(config.labels[labels::OWNER], "id-1");
    assert_eq!(config.labels[labels::POD_UID], "u");
    assert_eq!(config.annotations[labels::GRACE], "30");
}

#[test]
fn namespaces_are_the_pods_own_unless_it_says_otherwise() {
    use NamespaceMode::{Container, Node, Pod};
    for (spec, network, pid, ipc) in [
        ("", Pod, Container, Pod),
        ("hostNetwork: true,", Node, Container, Pod),
        ("shareProcessNamespace: true,", Pod, Pod, Pod),
        ("hostPID: true, hostIPC: true,", Pod, Node, Node),
    ] {
        let config = a_sandbox(&format!("{{{spec} containers: [{{name: app, image: i}}]}}"));
        let security = config.linux.unwrap().security_context.unwrap();
        let options = security.namespace_options.unwrap();
        let found = (options.network(), options.pid(), options.ipc());
        assert_eq!(found, (network, pid, ipc), "{spec}");
        assert_eq!(config.hostname.is_empty(), network == Node, "{spec}");
        let containers = a_container(spec, "").linux.unwrap();
        let containers = containers.security_context.unwrap().namespace_options;
        assert_eq!(containers, Some(options), "{spec}");
    }
}

#[test]
fn a_host_is_called_by_a_name_that_it_may_have() {
    for (said, expected) in [
        (String::new(), "web".to_owned()),
        (format!("hostname: {},", "h".repeat(64)), "h".repeat(63)),
        (format!("hostname: {}-h,", "h".repeat(62)), "h".repeat(62)),
    ] {
        let config = a_sandbox(&format!("{{{said} containers: [{{name: app, image: i}}]}}"));
        assert_eq!(config.hostname, expected);
    }
}

#[test]
fn a_containers_security_goes_before_its_pods() {
    let of_pod = "securityContext: {runAsUser: 5, runAsGroup: 6, fsGroup: 7, supplementalGroups: [8, 9], \
        seccompProfile: {type: RuntimeDefault}},";
    let none = security("", "");
    let number = |value| Some(Int64Value { value });
    assert_eq!(none.run_as_user, number(0), "an image without a user");
    assert_eq!(none.seccomp.unwrap().profile_type, 1);
    assert!(!none.no_new_privs && !none.privileged && !none.readonly_rootfs);
    assert!(none.masked_paths.contains(&"/proc/kcore".to_owned()));
    let pods = security(of_pod, "");
    assert_eq!(
        (pods.run_as_user, pods.run_as_group),
        (number(5), number(6))
    );
    assert_eq!(pods.supplemental_groups, [7, 8, 9]);
    assert_eq!(pods.seccomp.unwrap().profile_type, 0);
    let own = security(
        of_pod,
        "securityContext: {runAsUser: 1, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, \
         seccompProfile: {type: Unconfined}, capabilities: {add: [SYS_TIME], drop: [ALL]}}",
    );
    assert_eq!((own.run_as_user, own.run_as_group), (number(1), number(6)));
    assert_eq!(own.seccomp.unwrap().profile_type, 1);
    assert!(own.no_new_privs && own.readonly_rootfs);
    let capabilities = own.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["SYS_TIME"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
}

#[test]
fn a_sandbox_is_privileged_with_any_privileged_container() {
    let spec = |pods: &str| {
        format!(
            "{{{pods} containers: [{{name: app, image: i, securityContext: {{privileged: true}}}}]}}"
        )
    };
    let security = |spec: &str| a_sandbox(spec).linux.unwrap().security_context.unwrap();
    let alone = security(&spec(
        "securityContext: {runAsGroup: 6, sysctls: [{name: a, value: b}]},",
    ));
    assert!(alone.privileged);
    assert_eq!((alone.run_as_user, alone.run_as_group), (None, None));
    assert_eq!(alone.seccomp.unwrap().profile_type, 0);
    let both = security(&spec("securityContext: {runAsGroup: 6, runAsUser: 5},"));
    assert_eq!(both.run_as_group, Some(Int64Value { value: 6 }));
}

#[test]
fn who_may_not_be_root_is_somebody_else_for_sure() {
    let image = |uid: Option<i64>, username: &str| Image {
        uid: uid.map(|value| Int64Value { value }),
        username: username.to_owned(),
        ..Image::default()
    };
    for (said, image, expected) in [
        ("", image(None, ""), Some("its image runs as root")),
        ("", image(Some(0), ""), Some("its image runs as root")),
        ("", image(Some(5), ""), None),
        ("", image(None, "www"), Some("runs as \"www\"")),
        (", runAsUser: 5", image(None, ""), None),
        (", runAsUser: 0", image(Some(5), ""), Some("runAsUser is 0")),
    ] {
        let fields = format!("securityContext: {{runAsNonRoot: true{said}}}");
        let error = try_container("", &fields, &image, &[]).err();
        let error = error.map(|it| it.to_string());
        match (&error, expected) {
            (Some(error), Some(expected)) => assert!(error.contains(expected), "{error}"),
            (error, expected) => assert_eq!(error.as_deref(), expected, "{said}"),
        }
    }
}

#[test]
fn variables_are_put_in_where_they_are_known() {
    let config = a_container(
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
        .map(|it| format!("{}={}", it.key, it.value))
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
fn a_mount_is_read_only_when_anybody_says_so() {
    let source = |read_only| Source {
        host_path: "/vol".into(),
        read_only,
    };
    for (said, sources, expected) in [
        ("", source(false), false),
        (", readOnly: true", source(false), true),
        ("", source(true), true),
    ] {
        let fields = format!("volumeMounts: [{{name: v, mountPath: data{said}}}]");
        let config = try_container("", &fields, &Image::default(), &[sources]).unwrap();
        let mount = &config.mounts[0];
        assert_eq!(mount.container_path, "/data");
        assert_eq!(mount.host_path, "/vol");
        assert_eq!(mount.readonly, expected, "{said}");
    }
    let fields = "volumeMounts: [{name: v, mountPath: /data}]";
    let error = try_container("", fields, &Image::default(), &[]).unwrap_err();
    assert!(
        error.to_string().contains("nobody has said where"),
        "{error}"
    );
}

#[test]
fn resources_are_what_kubelet_makes_of_them() {
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
        let config = a_container("", &format!("resources: {{{resources}}}"));
        let found = config.linux.unwrap().resources.unwrap();
        assert_eq!(found.cpu_quota, quota, "{resources}");
        assert_eq!(found.cpu_period, if quota == 0 { 0 } else { 100_000 });
        assert_eq!(found.cpu_shares, shares, "{resources}");
        assert_eq!(found.memory_limit_in_bytes, memory, "{resources}");
        assert_eq!(found.oom_score_adj, oom, "{resources}");
    }
    let error = try_container(
        "",
        "resources: {limits: {cpu: many}}",
        &Image::default(),
        &[],
    );
    let error = error.unwrap_err().to_string();
    assert!(error.contains("cpu: \"many\" is no amount"), "{error}");
}

#[test]
fn a_part_of_a_volume_is_below_it() {
    let of = |mount: &str, env: &str| {
        let pod = with_app(
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
        assert_eq!(of(mount, env), Ok(expected), "{mount}");
    }
    for (mount, env, told) in [
        ("subPath: /etc", "", "isn't relative"),
        ("subPath: a/../../b", "", "has `..` in it"),
        ("subPathExpr: $(A)", "", "has no env \"A\""),
        (
            "subPathExpr: $(A)/b",
            "{name: A, value: ..}",
            "has `..` in it",
        ),
        (
            "subPathExpr: $(A)",
            "{name: A, value: /etc}",
            "isn't relative",
        ),
        ("subPath: a, subPathExpr: b", "", "both"),
        ("subPath: \"a\\0\"", "", "NUL"),
    ] {
        let error = of(mount, env).expect_err(mount).to_string();
        assert!(error.contains(told), "{mount}: {error}");
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
        ("", "env: [{name: A=B, value: x}]", "no name of a variable"),
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
    for (pods, fields, told) in refused {
        let error = check(&with_app(pods, fields), &node());
        let error = error.expect_err(told).to_string();
        assert!(error.contains(told), "{error}");
    }
    let probed = with_app(
        "activeDeadlineSeconds: 5,",
        "livenessProbe: {exec: {command: [x]}}, ports: [{containerPort: 1, hostPort: 2}]",
    );
    assert_eq!(check(&probed, &node()), Ok(()));
    let in_memory = pod(
        "{containers: [{name: app, image: i}], volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]}",
    );
    let told = ignored(&in_memory).join("; ");
    for field in [
        "spec.volumes.emptyDir.medium: ",
        "spec.volumes.emptyDir.sizeLimit: ",
    ] {
        assert!(told.contains(field), "{told}");
    }
    let ignored = ignored(&probed).join("; ");
    for told in ["activeDeadlineSeconds", "livenessProbe", "hostPort"] {
        assert!(ignored.contains(told), "{ignored}");
    }
    let common = with_app(
        "dnsPolicy: ClusterFirst, restartPolicy: Always, schedulerName: x, nodeSelector: {a: b},",
        "volumeMounts: [{name: v, mountPath: /v, mountPropagation: None, recursiveReadOnly: Disabled}], \
         terminationMessagePath: /dev/termination-log, resources: {limits: {cpu: 1, ephemeral-storage: 1Gi}}",
    );
    assert_eq!(check(&common, &node()), Ok(()));
    assert_eq!(super::ignored(&common), Vec::<String>::new());
}

#[test]
fn a_handler_is_the_runtime_classs() {
    let class =
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: crust}\nhandler: h";
    let mut objects = Objects::default();
    let pods = pod("{runtimeClassName: crust, containers: [{name: app, image: i}]}");
    let error = handler(&objects, &pods).unwrap_err().to_string();
    assert!(error.contains("runtimeclass crust not found"), "{error}");
    objects.insert(manifest::read(class).unwrap().remove(0));
    assert_eq!(handler(&objects, &pods), Ok("h".to_owned()));
    let without = pod("{containers: [{name: app, image: i}]}");
    assert_eq!(handler(&objects, &without), Ok(String::new()));
}

#[test]
fn the_cri_knows_texts_alone() {
    use std::os::unix::ffi::OsStrExt;
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"/logs\xff"));
    let node = NodeFacts {
        logs: odd.to_owned(),
        ..node()
    };
    let pod = pod("{containers: [{name: app, image: i}]}");
    let error = sandbox(&pod, &node, 0, at(0)).unwrap_err();
    assert!(error.to_string().contains("no UTF-8"), "{error}");
}

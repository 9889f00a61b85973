//! Kinds of containers, and settings of pods that concern isolation.

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::{Scenario, scenario};
use crate::manifest::adapt_container;
use crate::report::Skip;
use crate::test::{Test, describe_pod};
use crate::wait::Progress;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "containers",
        "Init, sidecar and ephemeral containers of a pod have the same volume as its containers",
        CONTAINERS,
        containers
    ),
    scenario!(
        "read-only-root",
        "A container with a read-only root file system has its volume, in a directory that the image doesn't have",
        READ_ONLY_ROOT,
        read_only_root
    ),
    scenario!(
        "privileged",
        "A privileged container has its volume, and its device only where every privileged container has it",
        PRIVILEGED,
        privileged
    ),
    scenario!(
        "host-users",
        "A pod with a user namespace sees the volume's files with its own ids",
        HOST_USERS,
        host_users
    ),
    scenario!(
        "shared-processes",
        "A container can't reach the volume's raw device through the sandbox of its pod",
        SHARED_PROCESSES,
        shared_processes
    ),
    scenario!(
        "propagation",
        "HostToContainer works, and Bidirectional is refused with a reason",
        PROPAGATION,
        propagation
    ),
];

const CONTAINERS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  initContainers:
  - {name: init, image: busybox, command: [sh, -c, echo init > /data/init], volumeMounts: [{name: v, mountPath: /data}]}
  - name: sidecar
    image: busybox
    restartPolicy: Always
    command: [sh, -c, echo sidecar > /data/sidecar; exec sleep 1000000]
    volumeMounts: [{name: v, mountPath: /data}]
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn containers(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.deferred("a", 1).await?;
    test.wait_until("the sidecar has written", async || {
        let files = test.sh("a", "ls /data").await?;
        Ok(Progress::of(files.contains("sidecar"), &files))
    })
    .await?;
    test.expect("a", "cat /data/init /data/sidecar", "init\nsidecar")
        .await?;
    let mut container = json!({
        "name": "debugger",
        "image": "busybox",
        "command": ["sh", "-c", "echo debugger > /data/debugger; exec sleep 1000000"],
        "volumeMounts": [{"name": "v", "mountPath": "/data"}],
    });
    adapt_container(&mut container, test.arguments);
    test.cluster
        .add_ephemeral_container(&test.namespace, "a", &container)
        .await?;
    test.wait_until("the ephemeral container runs", async || {
        let pod = test.pod("a").await?;
        let state = &pod["status"]["ephemeralContainerStatuses"][0]["state"];
        Ok(Progress::of(
            state["running"].is_object(),
            &describe_pod(&pod),
        ))
    })
    .await?;
    test.wait_until("the ephemeral container has written", async || {
        let files = test.sh("a", "ls /data").await?;
        Ok(Progress::of(files.contains("debugger"), &files))
    })
    .await?;
    test.expect_in("a", Some("debugger"), "cat /data/init", "init")
        .await
}

const READ_ONLY_ROOT: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: v, mountPath: /not/in/the/image}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn read_only_root(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.deferred("a", 1).await?;
    test.expect(
        "a",
        "cd /not/in/the/image; echo hello > file; cat file",
        "hello",
    )
    .await?;
    test.refused("a", None, "echo x > /x", "Read-only file system")
        .await
}

const PRIVILEGED: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - {name: a, image: busybox, command: [sleep, '1000000'], securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /data}]}
  - {name: b, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn privileged(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.deferred("a", 1).await?;
    test.expect_in(
        "a",
        Some("a"),
        "echo hello > /data/file; cat /data/file",
        "hello",
    )
    .await?;
    test.expect_in("a", Some("b"), "cat /data/file", "hello")
        .await?;
    test.expect_in("a", Some("b"), "find /dev -type b", "")
        .await
}

const HOST_USERS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: userns}
spec:
  runtimeClassName: crust
  hostUsers: false
  securityContext: {fsGroup: 2000}
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    volumeMounts: [{name: v, mountPath: /data}, {name: v, mountPath: /sub, subPath: sub}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: host}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn host_users(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Pod/userns"])
        .await?;
    test.wait_until(
        "pod userns runs, or the engine refuses user namespaces",
        async || {
            let events = test.cluster.events(&test.namespace, "userns").await?;
            let refused =
                |event: &&String| event.contains("user namespace") && event.contains("support");
            if let Some(event) = events.iter().find(refused) {
                bail!(Skip(event.clone()));
            }
            let pod = test.pod("userns").await?;
            Ok(Progress::of(
                pod["status"]["phase"] == "Running",
                &describe_pod(&pod),
            ))
        },
    )
    .await?;
    test.running("userns").await?;
    test.deferred("userns", 1).await?;
    let first = test
        .sh("userns", "awk '{print $2}' /proc/self/uid_map")
        .await?;
    ensure!(first != "0", "the pod has no user namespace of its own");
    test.expect(
        "userns",
        "touch /data/file /sub/file; stat -c '%u %g' /data/file",
        "0 2000",
    )
    .await?;
    test.start(&["Pod/host"]).await?;
    test.expect(
        "host",
        "stat -c '%u %g' /data/file /data/sub/file",
        "0 2000\n0 2000",
    )
    .await
}

const SHARED_PROCESSES: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  shareProcessNamespace: true
  containers:
  - {name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data, subPath: sub, readOnly: true}]}
  - {name: pause-user, image: busybox, command: [sleep, '1000000'], securityContext: {runAsUser: 65535, runAsGroup: 65535}}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn shared_processes(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.deferred("a", 1).await?;
    // The sandbox's first process is process 1 of the pod. Only a container with its user is let in: most images of
    // sandboxes have user 65535.
    let mut entered = 0;
    for container in ["a", "pause-user"] {
        let enter = "ls /proc/1/root/dev > /dev/null 2>&1 && echo entered; true";
        if test.sh_in("a", Some(container), enter).await? != "entered" {
            continue;
        }
        entered += 1;
        let find = "find /dev /proc/1/root/dev /proc/1/root/.crust -type b 2> /dev/null; true";
        test.expect_in("a", Some(container), find, "").await?;
    }
    test.step(format_args!(
        "{entered} of 2 containers can enter the sandbox's root directory"
    ));
    // CRI's default capabilities include CAP_MKNOD, so only the device cgroup keeps the container from the device.
    let number = "stat -c %d /data | awk '{print int($1/256)%4096, $1%256}'";
    let make = format!("mknod /tmp/raw b $({number}) && echo made");
    test.expect_in("a", Some("a"), &make, "made").await?;
    let read = "dd if=/tmp/raw of=/dev/null bs=512 count=1";
    test.refused("a", Some("a"), read, "Operation not permitted")
        .await
}

const PROPAGATION: &str = "
apiVersion: v1
kind: Pod
metadata: {name: from-host}
spec:
  runtimeClassName: crust
  containers:
  - {name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data, mountPropagation: HostToContainer}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: to-host}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    securityContext: {privileged: true}
    volumeMounts: [{name: v, mountPath: /data, mountPropagation: Bidirectional}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn propagation(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/from-host"])
        .await?;
    test.deferred("from-host", 1).await?;
    test.expect(
        "from-host",
        "echo hello > /data/file; cat /data/file",
        "hello",
    )
    .await?;
    test.create(&["Pod/to-host"]).await?;
    let _ = test.event("to-host", "Bidirectional").await?;
    Ok(())
}

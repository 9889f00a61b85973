//! A volume is made, mounted in the sandbox, and has its group, its subPaths and its modes.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{COMMON, Scenario, scenario};
use crate::test::Test;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "provisioning",
        "A new claim's volume is mounted in the pod's sandbox and not on the node, and keeps its data for the next pod",
        COMMON,
        provisioning
    ),
    scenario!(
        "fs-group",
        "A pod's fsGroup owns the files, with the policy Always all of them and with OnRootMismatch the new ones",
        FS_GROUP,
        fs_group
    ),
    scenario!(
        "subpath",
        "A subPath or subPathExpr shows directories and files of the volume, and nothing outside of it",
        SUBPATH,
        subpath
    ),
    scenario!(
        "read-only",
        "A container with a read-only mount sees what another one writes, and can't write itself",
        READ_ONLY,
        read_only
    ),
];

async fn provisioning(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/first"])
        .await?;
    test.deferred("first", 1).await?;
    test.expect("first", "echo hello > /data/file; cat /data/file", "hello")
        .await?;
    test.expect("first", "grep -c ' /data ' /proc/self/mountinfo", "1")
        .await?;
    let uid = test.uid("first").await?;
    let volumes = format!(
        "{}/pods/{uid}/volumes/kubernetes.io~csi",
        test.arguments.kubelet_dir
    );
    let files = test
        .node
        .run(&format!("find {volumes}/*/mount -mindepth 1"))
        .await?;
    ensure!(
        files.is_empty(),
        "the volume's directory on the node isn't empty: {files}"
    );
    test.step("the volume's directory on the node is empty");
    test.delete("Pod/first").await?;
    test.start(&["Pod/second"]).await?;
    test.expect("second", "cat /data/file", "hello").await
}

const FS_GROUP: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 2000}
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: user}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 2000, runAsUser: 1000, runAsGroup: 1000}
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn fs_group(test: &Test<'_>) -> Result<()> {
    for (policy, group_of_old_file) in [("OnRootMismatch", "5"), ("Always", "2000")] {
        let name = policy.to_ascii_lowercase();
        let class = test
            .create_class(&name, &json!({"crust.dev/fsgroup-change-policy": policy}))
            .await?;
        let mut claim = test.find("PersistentVolumeClaim/data")?;
        claim["spec"]["storageClassName"] = json!(class);
        test.create_object(claim).await?;
        test.start(&["Pod/a"]).await?;
        test.expect("a", "stat -c '%g %A' /data", "2000 drwxrwsr-x")
            .await?;
        test.expect(
            "a",
            "echo x > /data/old; chown 0:5 /data/old; stat -c %g /data/old",
            "5",
        )
        .await?;
        test.delete("Pod/a").await?;
        test.start(&["Pod/user"]).await?;
        test.deferred("user", 1).await?;
        test.expect("user", "stat -c %g /data/old", group_of_old_file)
            .await?;
        test.expect(
            "user",
            "echo x > /data/new; stat -c '%u %g' /data/new",
            "1000 2000",
        )
        .await?;
        test.delete("Pod/user").await?;
        test.delete("PersistentVolumeClaim/data").await?;
    }
    Ok(())
}

const SUBPATH: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  initContainers:
  - name: prepare
    image: busybox
    command: [sh, -c, mkdir -p /data/made/by; echo hello > /data/file; ln -s / /data/link]
    volumeMounts: [{name: v, mountPath: /data}]
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: v, mountPath: /data}
    - {name: v, mountPath: /sub, subPath: made/by}
    - {name: v, mountPath: /new, subPath: new/one}
    - {name: v, mountPath: /expr, subPathExpr: logs/$(POD)}
    - {name: v, mountPath: /file, subPath: file, readOnly: true}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: out}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    volumeMounts: [{name: v, mountPath: /out, subPath: link/etc}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn subpath(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.deferred("a", 1).await?;
    test.expect(
        "a",
        "touch /sub/x /new/y /expr/z; cd /data; ls made/by new/one logs/a | grep .",
        "logs/a:\nz\nmade/by:\nx\nnew/one:\ny",
    )
    .await?;
    test.expect("a", "cat /file", "hello").await?;
    test.refused("a", None, "echo x > /file", "Read-only file system")
        .await?;
    test.create(&["Pod/out"]).await?;
    let _ = test.event("out", "subPath").await?;
    Ok(())
}

const READ_ONLY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - {name: writer, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}
  - {name: reader, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data, readOnly: true}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data, readOnly: true}}]
";

async fn read_only(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a", "Pod/other"])
        .await?;
    test.deferred("a", 1).await?;
    test.sh_in("a", Some("writer"), "echo hello > /data/file; sync")
        .await?;
    test.expect_in("a", Some("reader"), "cat /data/file", "hello")
        .await?;
    test.refused(
        "a",
        Some("reader"),
        "echo x > /data/x",
        "Read-only file system",
    )
    .await?;
    test.expect("other", "cat /data/file", "hello").await?;
    test.refused("other", None, "echo x > /data/x", "Read-only file system")
        .await
}

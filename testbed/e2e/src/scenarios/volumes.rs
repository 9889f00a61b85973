//! Sources of volumes, access modes, growth, and what kubelet reports.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{COMMON, Scenario, scenario};
use crate::report::Skip;
use crate::test::{Test, describe_pod};
use crate::wait::Progress;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "generic-ephemeral",
        "A generic ephemeral volume is made and deleted with its pod",
        GENERIC_EPHEMERAL,
        generic_ephemeral
    ),
    scenario!(
        "inline",
        "A CSI volume within a pod's spec, deferred or not, is made and deleted with its pod",
        INLINE,
        inline
    ),
    scenario!(
        "block",
        "A pod that asks for a raw device gets it, and is not changed by the handler",
        BLOCK,
        block
    ),
    scenario!(
        "one-pod",
        "A second pod of a ReadWriteOncePod claim waits until the first one has ended",
        COMMON,
        one_pod
    ),
    scenario!(
        "shared",
        "Two pods of a ReadWriteOnce claim on one node have the same file system",
        COMMON,
        shared
    ),
    scenario!(
        "expansion",
        "A volume grows while a container writes to it",
        EXPANSION,
        expansion
    ),
    scenario!(
        "expansion-xfs",
        "An xfs grows while a container writes to it",
        EXPANSION,
        expansion_xfs
    ),
    scenario!(
        "stats",
        "Kubelet reports the usage of a deferred volume, and its health where that is enabled",
        STATS,
        stats
    ),
    scenario!(
        "no-runtime-class",
        "Data of a pod that forgot its runtimeClassName is kept on the node, and never mixed with the volume's",
        NO_RUNTIME_CLASS,
        no_runtime_class
    ),
    scenario!(
        "nfs",
        "A share of an NFS server is mounted in the sandboxes of two pods",
        NFS,
        nfs
    ),
];

const GENERIC_EPHEMERAL: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 2000}
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: crust-deferred}}}}]
";

async fn generic_ephemeral(test: &Test<'_>) -> Result<()> {
    test.start(&["Pod/a"]).await?;
    test.deferred("a", 1).await?;
    test.expect(
        "a",
        "echo hello > /data/file; stat -c %g /data/file",
        "2000",
    )
    .await?;
    test.delete("Pod/a").await?;
    test.gone("PersistentVolumeClaim/a-v").await
}

const INLINE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 2000}
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, csi: {driver: csi.crust.dev, fsType: ext4, volumeAttributes: {crust.dev/defer: 'true', crust.dev/size: 64Mi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  securityContext: {fsGroup: 2000}
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, csi: {driver: csi.crust.dev, fsType: ext4, volumeAttributes: {crust.dev/size: 64Mi}}}]
";

async fn inline(test: &Test<'_>) -> Result<()> {
    let driver = test.cluster.get("", "CSIDriver", "csi.crust.dev").await?;
    let modes = driver.map(|driver| driver["spec"]["volumeLifecycleModes"].clone());
    let modes = modes.unwrap_or_default();
    if !modes
        .as_array()
        .is_some_and(|modes| modes.contains(&json!("Ephemeral")))
    {
        bail!(Skip(
            "the cluster has no CSIDriver csi.crust.dev with inline volumes".to_owned()
        ));
    }
    // Images and records of the driver.
    let files = async || {
        test.node
            .run("find /var/lib/crust-csi -type f | sort")
            .await
    };
    let before = files().await?;
    for (pod, deferred) in [("a", 1), ("plain", 0)] {
        test.start(&[&format!("Pod/{pod}")]).await?;
        if deferred == 1 {
            test.deferred(pod, 1).await?;
        }
        let write = "echo hello > /data/file; stat -c %g /data/file";
        test.expect(pod, write, "2000").await?;
        ensure!(
            files().await? != before,
            "the driver has no file for the volume"
        );
        test.delete(&format!("Pod/{pod}")).await?;
        test.wait_until("the driver has removed the volume's files", async || {
            let now = files().await?;
            Ok(Progress::of(now == before, &now))
        })
        .await?;
    }
    Ok(())
}

const BLOCK: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {storageClassName: crust-deferred, volumeMode: Block}
---
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeDevices: [{name: v, devicePath: /dev/raw}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: raw}}]
";

async fn block(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/raw", "Pod/a"]).await?;
    test.deferred("a", 0).await?;
    let write = "printf hello | dd of=/dev/raw conv=notrunc 2> /dev/null; head -c 5 /dev/raw";
    test.expect("a", write, "hello").await
}

async fn one_pod(test: &Test<'_>) -> Result<()> {
    let mut claim = test.find("PersistentVolumeClaim/data")?;
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    test.create_object(claim).await?;
    test.start(&["Pod/first"]).await?;
    test.deferred("first", 1).await?;
    test.expect("first", "echo hello > /data/file; cat /data/file", "hello")
        .await?;
    test.create(&["Pod/second"]).await?;
    let _ = test.event("second", "ReadWriteOncePod").await?;
    test.delete("Pod/first").await?;
    test.running("second").await?;
    test.expect("second", "cat /data/file", "hello").await
}

async fn shared(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/first", "Pod/second"])
        .await?;
    test.deferred("first", 1).await?;
    test.deferred("second", 1).await?;
    test.expect("first", "echo hello > /data/file; cat /data/file", "hello")
        .await?;
    test.expect("second", "cat /data/file", "hello").await?;
    let device = test.sh("first", "stat -c %d /data").await?;
    test.expect("second", "stat -c %d /data", &device).await?;
    test.delete("Pod/first").await?;
    test.expect(
        "second",
        "echo more >> /data/file; cat /data/file",
        "hello\nmore",
    )
    .await
}

const EXPANSION: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sh, -c, while date >> /data/log; do sleep 0.1; done]
    volumeMounts: [{name: v, mountPath: /data}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn expansion(test: &Test<'_>) -> Result<()> {
    let class = test.class(&test.arguments.storage_class).await?;
    if class["allowVolumeExpansion"] != true {
        let name = &test.arguments.storage_class;
        bail!(Skip(format!("StorageClass {name} doesn't allow expansion")));
    }
    test.create(&["PersistentVolumeClaim/data"]).await?;
    grow(test, "256Mi").await
}

async fn expansion_xfs(test: &Test<'_>) -> Result<()> {
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs"});
    let class = test.create_class("xfs", &parameters).await?;
    let mut claim = test.find("PersistentVolumeClaim/data")?;
    claim["spec"]["storageClassName"] = json!(class);
    claim["spec"]["resources"] = json!({"requests": {"storage": "320Mi"}});
    test.create_object(claim).await?;
    grow(test, "1Gi").await
}

/// Grows the claim while the pod writes to its volume.
async fn grow(test: &Test<'_>, new_size: &str) -> Result<()> {
    test.start(&["Pod/a"]).await?;
    let size = async || -> Result<u64> {
        let size = test.sh("a", "df -k /data | awk 'END {print $2}'").await?;
        Ok(size.parse()?)
    };
    let before = size().await?;
    let change = json!({"spec": {"resources": {"requests": {"storage": new_size}}}});
    test.cluster
        .patch(&test.namespace, "PersistentVolumeClaim", "data", &change)
        .await?;
    let has_grown = async || {
        let claim = test.object("PersistentVolumeClaim", "data").await?;
        let status = &claim["status"];
        if status.to_string().contains("CAP_SYS_RESOURCE") {
            bail!(Skip(
                "no program of this node may grow an ext4, for lack of CAP_SYS_RESOURCE".to_owned()
            ));
        }
        Ok(Progress::of(
            status["capacity"]["storage"] == new_size,
            status,
        ))
    };
    if let Err(error) = test
        .wait_until("the claim has its new capacity", has_grown)
        .await
    {
        // csi-resizer reports that it has begun.
        let events = test.cluster.events(&test.namespace, "data").await?;
        if !events.iter().any(|event| event.contains("Resiz")) {
            bail!(Skip("no external resizer has seen the claim".to_owned()));
        }
        return Err(error);
    }
    let after = size().await?;
    ensure!(
        after > 2 * before,
        "the file system has {after} KiB, and had {before} KiB before"
    );
    test.step(format_args!(
        "the file system has grown from {before} KiB to {after} KiB"
    ));
    let pod = test.pod("a").await?;
    let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
    ensure!(
        *restarts == 0,
        "the container was restarted: {}",
        describe_pod(&pod)
    );
    test.deferred("a", 1).await
}

const STATS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

/// Returns what kubelet reports on a claim's volume in a pod.
fn volume_stats(summary: &Value, namespace: &str, claim: &str) -> Option<Value> {
    let pods = summary["pods"].as_array()?;
    let volumes = pods
        .iter()
        .filter_map(|pod| pod["volume"].as_array())
        .flatten();
    let reference = json!({"name": claim, "namespace": namespace});
    let mut found = volumes.filter(|volume| volume["pvcRef"] == reference);
    found.next().cloned()
}

async fn stats(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.expect(
        "a",
        "dd if=/dev/zero of=/data/file bs=1M count=20 2> /dev/null; sync; echo done",
        "done",
    )
    .await?;
    let mut reported = Value::Null;
    // Kubelet asks for a volume's stats once a minute.
    test.wait_until(
        "kubelet reports at least 20 MiB of the volume as used",
        async || {
            let summary = test.cluster.stats_summary().await?;
            reported = volume_stats(&summary, &test.namespace, "data").unwrap_or_default();
            Ok(Progress::of(
                reported["usedBytes"].as_u64() >= Some(20 << 20),
                &reported,
            ))
        },
    )
    .await?;
    for field in ["capacityBytes", "availableBytes", "inodes", "inodesUsed"] {
        ensure!(
            reported[field].as_u64() > Some(0),
            "{field} isn't reported: {reported}"
        );
    }
    // The host's file system would be another size.
    let size = test.sh("a", "df -k /data | awk 'END {print $2}'").await?;
    let size = size.parse::<u64>()? * 1024;
    ensure!(
        reported["capacityBytes"] == size,
        "the volume has {size} bytes, but kubelet reports {reported}"
    );
    let health = &reported["volumeHealthStats"];
    ensure!(
        health["abnormal"] != true,
        "the volume is reported as abnormal: {reported}"
    );
    test.step(format_args!("usage: {reported}"));
    Ok(())
}

const NO_RUNTIME_CLASS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: forgot}
spec:
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: right}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn no_runtime_class(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/forgot"])
        .await?;
    test.deferred("forgot", 0).await?;
    let content = format!("kept for {}", test.uid("forgot").await?);
    test.expect(
        "forgot",
        &format!("echo '{content}' > /data/file; ls /data"),
        "file",
    )
    .await?;
    test.start(&["Pod/right"]).await?;
    test.deferred("right", 1).await?;
    test.expect("right", "ls /data | grep -v lost+found; true", "")
        .await?;
    test.delete("Pod/forgot").await?;
    let kept = format!(
        "grep -rlF '{content}' {0}/plugins/*/quarantine {0}/pods 2> /dev/null; true",
        test.arguments.kubelet_dir
    );
    let kept = test.node.run(&kept).await?;
    ensure!(!kept.is_empty(), "the file that the pod wrote is lost");
    test.step(format_args!("the file that the pod wrote is at {kept}"));
    // It is the suite's own file, which nobody wants to keep.
    let _ = test.node.run(&format!("rm -f '{kept}'")).await?;
    test.expect("right", "ls /data | grep -v lost+found; true", "")
        .await
}

const NFS: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: share}
spec: {storageClassName: crust-nfs-deferred, accessModes: [ReadWriteMany]}
---
apiVersion: v1
kind: Pod
metadata: {name: first}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: share}}]
---
apiVersion: v1
kind: Pod
metadata: {name: second}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data, readOnly: true}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: share}}]
";

async fn nfs(test: &Test<'_>) -> Result<()> {
    let _ = test.class(&test.arguments.nfs_storage_class).await?;
    test.start(&["PersistentVolumeClaim/share", "Pod/first", "Pod/second"])
        .await?;
    test.deferred("first", 1).await?;
    test.deferred("second", 1).await?;
    test.expect("first", "echo hello > /data/file; cat /data/file", "hello")
        .await?;
    test.expect("second", "cat /data/file", "hello").await?;
    test.refused("second", None, "echo x > /data/x", "Read-only file system")
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stats_of_a_claim_are_found_by_namespace_and_name() {
        let volume = |namespace: &str, used: u64| json!({"usedBytes": used, "pvcRef": {"name": "data", "namespace": namespace}});
        let summary = json!({"pods": [
            {"volume": [{"usedBytes": 1}, volume("other", 2)]},
            {},
            {"volume": [volume("own", 3)]},
        ]});
        let found = volume_stats(&summary, "own", "data").unwrap();
        assert_eq!(found["usedBytes"], 3);
        assert!(volume_stats(&summary, "own", "logs").is_none());
    }
}

//! Programs of the node that are killed or restarted, and a reboot of the node.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Scenario, scenario};
use crate::test::Test;
use crate::wait::Progress;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "kubelet-killed",
        "Pods keep their volumes while kubelet is killed and started, and are then deleted as usual",
        PODS,
        kubelet_killed,
        true
    ),
    scenario!(
        "engine-killed",
        "Pods keep their volumes while containerd is killed and started, and new ones start",
        PODS,
        engine_killed,
        true
    ),
    scenario!(
        "killed-under-load",
        "Pods that start while crust_ops and the driver are killed again and again have their volumes in the end",
        LOAD,
        killed_under_load,
        true
    ),
    scenario!(
        "deleted-without-kubelet",
        "A pod that is deleted while kubelet is down is cleaned up when kubelet is back",
        PODS,
        deleted_without_kubelet,
        true
    ),
    scenario!(
        "reboot",
        "After all containers have ended and the state in memory is gone, as after a reboot, pods get their volumes again",
        PODS,
        reboot,
        true
    ),
];

const PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sh, -c, echo start >> /data/starts; exec sleep 1000000], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: next}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

/// Kills a service of the node, and starts it again.
async fn kill_service(test: &Test<'_>, service: &str) -> Result<()> {
    let start_time = async || {
        let show = format!("systemctl show --property ExecMainStartTimestampMonotonic {service}");
        test.node.run(&show).await
    };
    let before = start_time().await?;
    // Without --kill-who, the shims of all containers would be killed, too. A unit that restarts itself may be starting
    // already.
    let script = format!(
        "systemctl kill --kill-who=main --signal=KILL {service}; systemctl start {service}"
    );
    test.node.run_in_background(&script).await?;
    test.wait_until(&format!("{service} was killed and started"), async || {
        let now = start_time().await?;
        Ok(Progress::of(now != before, &now))
    })
    .await
}

async fn node_is_ready(test: &Test<'_>) -> Result<()> {
    test.wait_until(
        "a program can be run in the pod, so kubelet and the engine work",
        async || {
            Ok(match test.sh("a", "true").await {
                Ok(_) => Progress::Done,
                Err(error) => Progress::NotYet(format!("{error:#}")),
            })
        },
    )
    .await
}

async fn kubelet_killed(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    kill_service(test, "kubelet").await?;
    node_is_ready(test).await?;
    test.expect("a", "cat /data/starts", "start").await?;
    test.deferred("a", 1).await?;
    test.start(&["Pod/next"]).await?;
    test.delete("Pod/a").await?;
    test.expect("next", "cat /data/starts", "start").await
}

async fn engine_killed(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    kill_service(test, "containerd").await?;
    node_is_ready(test).await?;
    test.expect("a", "cat /data/starts", "start").await?;
    test.start(&["Pod/next"]).await?;
    test.deferred("a", 1).await?;
    test.delete("Pod/a").await?;
    test.expect("next", "cat /data/starts", "start").await
}

const LOAD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: load}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: crust-deferred}}}}]
";

async fn killed_under_load(test: &Test<'_>) -> Result<()> {
    let names: Vec<String> = (1..=8).map(|number| format!("load-{number}")).collect();
    for (round, names) in names.chunks(4).enumerate() {
        for name in names {
            let mut pod = test.find("Pod/load")?;
            pod["metadata"]["name"] = json!(name);
            test.create_object(pod).await?;
        }
        kill_programs(test, &format!("start of pods, {round}")).await?;
    }
    for name in &names {
        test.running(name).await?;
        test.deferred(name, 1).await?;
        let write = "echo hello > /data/file; cat /data/file";
        test.expect(name, write, "hello").await?;
    }
    for name in &names {
        test.cluster
            .delete(&test.namespace, "Pod", name, None)
            .await?;
    }
    kill_programs(test, "deletion of pods").await?;
    for name in &names {
        test.gone(&format!("Pod/{name}")).await?;
    }
    Ok(())
}

/// Kills `crust_ops` and the driver. Waits for each of them to run, because kubelet delays their restarts more and more.
async fn kill_programs(test: &Test<'_>, during: &str) -> Result<()> {
    for program in ["crust_ops", "crust-csi"] {
        test.wait_until(&format!("{program} was killed ({during})"), async || {
            let kill = format!("pkill -KILL -x {program} && echo killed; true");
            let killed = test.node.run(&kill).await? == "killed";
            Ok(Progress::of(killed, &"it doesn't run"))
        })
        .await?;
    }
    Ok(())
}

async fn deleted_without_kubelet(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    // Nothing can be run on the node while kubelet is down.
    let script = "systemctl stop kubelet; sleep 30; systemctl start kubelet";
    test.node.run_in_background(script).await?;
    test.wait_until("kubelet is down", async || {
        let answers = test.cluster.stats_summary().await.is_ok();
        Ok(Progress::of(!answers, &"kubelet answers"))
    })
    .await?;
    test.cluster
        .delete(&test.namespace, "Pod", "a", Some(0))
        .await?;
    test.gone("Pod/a").await?;
    ensure!(
        test.cluster.stats_summary().await.is_err(),
        "kubelet was started before the pod was deleted"
    );
    test.wait_until(
        "nothing of the deleted pod is left on the node",
        async || {
            let left = test.node.leftovers().await?;
            Ok(Progress::of(left.is_empty(), &format_args!("{left:?}")))
        },
    )
    .await?;
    test.start(&["Pod/next"]).await?;
    test.expect("next", "cat /data/starts", "start").await
}

/// Ends all containers of the node at once, removes what a reboot removes, and starts the engine and kubelet. The boot id
/// stays the same.
const REBOOT: &str = r#"
systemctl stop kubelet
systemctl stop containerd
# This script runs in a container, too.
for group in /sys/fs/cgroup /sys/fs/cgroup/*; do
    echo $$ 2> /dev/null > "$group/cgroup.procs"
done
# Names of processes are cut to fifteen characters.
pkill -KILL -x containerd-shim
for group in $(grep -l kubepods /proc/[0-9]*/cgroup); do
    process=${group#/proc/}
    kill -KILL "${process%/cgroup}"
done
# The deepest mount points come last in the mount table.
for mount in $(awk '{print $5}' /proc/self/mountinfo | grep -E '^(/run/containerd|KUBELET/pods)/' | tac); do
    umount -l "$mount"
done
rm -rf --one-file-system /run/crust /run/runcrust /run/containerd
systemctl start containerd
systemctl start kubelet
"#;

async fn reboot(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    let _ = test.sh("a", "sync").await?;
    let script = REBOOT.replace("KUBELET", &test.arguments.kubelet_dir);
    test.node.run_in_background(&script).await?;
    test.step("the node's containers are being ended");
    test.restarted("a", 1).await?;
    node_is_ready(test).await?;
    test.expect("a", "cat /data/starts", "start\nstart").await?;
    test.deferred("a", 1).await?;
    test.start(&["Pod/next"]).await?;
    test.delete("Pod/a").await?;
    test.expect("next", "cat /data/starts", "start\nstart")
        .await
}

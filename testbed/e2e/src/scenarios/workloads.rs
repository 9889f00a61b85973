//! Controllers, restarts, deletions, and many pods at once.

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Scenario, scenario};
use crate::test::{Test, describe_pod};
use crate::wait::Progress;

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario!(
        "statefulset",
        "Pods of a StatefulSet find their own volumes again after it was scaled down and up",
        STATEFUL_SET,
        stateful_set
    ),
    scenario!(
        "deployment",
        "During a Deployment's rollout the old and the new pod have the volume at once",
        DEPLOYMENT,
        deployment
    ),
    scenario!(
        "job",
        "The pods of a Job write to one volume, one after another",
        JOB,
        job
    ),
    scenario!(
        "crash-loop",
        "A container that crashes finds what it has written before",
        CRASH_LOOP,
        crash_loop
    ),
    scenario!(
        "out-of-memory",
        "A container that the kernel kills for its memory finds what it has written before",
        OUT_OF_MEMORY,
        out_of_memory
    ),
    scenario!(
        "liveness",
        "A container that kubelet restarts after failed probes finds what it has written before",
        LIVENESS,
        liveness
    ),
    scenario!(
        "forced-delete",
        "After a pod was deleted by force its volume is free for the next one",
        FORCED_DELETE,
        forced_delete
    ),
    scenario!(
        "many-pods",
        "Twenty pods with two volumes each are started and deleted at once",
        MANY_PODS,
        many_pods
    ),
];

const STATEFUL_SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec:
  serviceName: set
  replicas: 2
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec:
      runtimeClassName: crust
      containers: [{name: a, image: busybox, command: [sh, -c, hostname >> /data/names; exec sleep 1000000], volumeMounts: [{name: v, mountPath: /data}]}]
  volumeClaimTemplates:
  - {apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: v}, spec: {storageClassName: crust-deferred}}
";

async fn stateful_set(test: &Test<'_>) -> Result<()> {
    let scale = async |replicas: u32| {
        let change = json!({"spec": {"replicas": replicas}});
        test.cluster
            .patch(&test.namespace, "StatefulSet", "set", &change)
            .await
    };
    test.create(&["StatefulSet/set"]).await?;
    ready(test, "StatefulSet", "set", 2).await?;
    test.deferred("set-0", 1).await?;
    test.deferred("set-1", 1).await?;
    test.expect("set-1", "cat /data/names", "set-1").await?;
    scale(0).await?;
    test.gone("Pod/set-1").await?;
    test.gone("Pod/set-0").await?;
    scale(2).await?;
    ready(test, "StatefulSet", "set", 2).await?;
    for pod in ["set-0", "set-1"] {
        test.expect(pod, "cat /data/names", &format!("{pod}\n{pod}"))
            .await?;
    }
    Ok(())
}

/// Waits until a controller has replaced its old pods, and this number of pods is ready.
async fn ready(test: &Test<'_>, kind: &str, name: &str, replicas: u64) -> Result<()> {
    test.wait_until(
        &format!("{replicas} pods of {kind}/{name} are ready"),
        async || {
            let object = test.object(kind, name).await?;
            let status = &object["status"];
            let are_ready = ["replicas", "readyReplicas", "updatedReplicas"]
                .iter()
                .all(|count| status[count].as_u64().unwrap_or(0) == replicas);
            let is_current = status["observedGeneration"] == object["metadata"]["generation"];
            Ok(Progress::of(are_ready && is_current, status))
        },
    )
    .await
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      runtimeClassName: crust
      containers:
      - name: a
        image: busybox
        command: [sh, -c, echo start >> /data/starts; exec sleep 1000000]
        readinessProbe: {exec: {command: [cat, /data/starts]}, periodSeconds: 1}
        volumeMounts: [{name: v, mountPath: /data}]
      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn deployment(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Deployment/web"])
        .await?;
    ready(test, "Deployment", "web", 1).await?;
    let restart =
        json!({"spec": {"template": {"metadata": {"annotations": {"restarted": "once"}}}}});
    test.cluster
        .patch(&test.namespace, "Deployment", "web", &restart)
        .await?;
    ready(test, "Deployment", "web", 1).await?;
    let mut name = String::new();
    test.wait_until("only the new pod is left", async || {
        let pods = test.cluster.list(&test.namespace, "Pod").await?;
        let first = pods[0]["metadata"]["name"].as_str();
        first.unwrap_or_default().clone_into(&mut name);
        Ok(Progress::of(pods.len() == 1, &pods.len()))
    })
    .await?;
    test.deferred(&name, 1).await?;
    test.expect(&name, "cat /data/starts", "start\nstart").await
}

const JOB: &str = "
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  completions: 3
  parallelism: 1
  template:
    spec:
      runtimeClassName: crust
      restartPolicy: Never
      containers: [{name: a, image: busybox, command: [sh, -c, echo run >> /data/runs], volumeMounts: [{name: v, mountPath: /data}]}]
      volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  runtimeClassName: crust
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn job(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Job/job"])
        .await?;
    test.wait_until("the Job has succeeded three times", async || {
        let job = test.object("Job", "job").await?;
        Ok(Progress::of(
            job["status"]["succeeded"] == 3,
            &job["status"],
        ))
    })
    .await?;
    test.start(&["Pod/reader"]).await?;
    test.expect("reader", "cat /data/runs", "run\nrun\nrun")
        .await
}

const CRASH_LOOP: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - {name: a, image: busybox, command: [sh, -c, echo start >> /data/starts; wc -l < /data/starts; sleep 1; exit 1], volumeMounts: [{name: v, mountPath: /data, subPath: deep/er}]}
  - {name: b, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn crash_loop(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Pod/a"])
        .await?;
    test.restarted("a", 2).await?;
    starts(test, "a", Some("b"), "/data/deep/er/starts", 3).await?;
    test.deferred("a", 1).await
}

/// Waits until a file in a volume has at least this number of lines.
async fn starts(
    test: &Test<'_>,
    pod: &str,
    container: Option<&str>,
    file: &str,
    lines: u64,
) -> Result<()> {
    test.wait_until(&format!("{file} has {lines} lines"), async || {
        let count = test
            .sh_in(pod, container, &format!("wc -l < {file}"))
            .await?;
        Ok(Progress::of(count.trim().parse::<u64>()? >= lines, &count))
    })
    .await
}

const OUT_OF_MEMORY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sh, -c, 'echo start >> /data/starts; if [ $(wc -l < /data/starts) -lt 2 ]; then exec tail /dev/zero; fi; exec sleep 1000000']
    resources: {limits: {memory: 40Mi}}
    volumeMounts: [{name: v, mountPath: /data}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn out_of_memory(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Pod/a"])
        .await?;
    test.restarted("a", 1).await?;
    let pod = test.pod("a").await?;
    let reason = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["reason"];
    ensure!(
        reason == "OOMKilled",
        "the container ended otherwise: {}",
        describe_pod(&pod)
    );
    test.running("a").await?;
    starts(test, "a", None, "/data/starts", 2).await
}

const LIVENESS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  containers:
  - name: a
    image: busybox
    command: [sh, -c, echo start >> /data/starts; exec sleep 1000000]
    livenessProbe: {exec: {command: [sh, -c, '[ -e /data/alive ]']}, periodSeconds: 1, failureThreshold: 2}
    volumeMounts: [{name: v, mountPath: /data}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

async fn liveness(test: &Test<'_>) -> Result<()> {
    test.create(&["PersistentVolumeClaim/data", "Pod/a"])
        .await?;
    test.restarted("a", 1).await?;
    test.running("a").await?;
    test.expect("a", "touch /data/alive; sort -u /data/starts", "start")
        .await?;
    starts(test, "a", None, "/data/starts", 2).await
}

const FORCED_DELETE: &str = "
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  runtimeClassName: crust
  terminationGracePeriodSeconds: 60
  containers: [{name: a, image: busybox, command: [sleep, '1000000'], volumeMounts: [{name: v, mountPath: /data}]}]
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

async fn forced_delete(test: &Test<'_>) -> Result<()> {
    test.start(&["PersistentVolumeClaim/data", "Pod/a"]).await?;
    test.expect(
        "a",
        "echo hello > /data/file; sync; cat /data/file",
        "hello",
    )
    .await?;
    test.cluster
        .delete(&test.namespace, "Pod", "a", Some(0))
        .await?;
    test.gone("Pod/a").await?;
    test.start(&["Pod/next"]).await?;
    test.expect("next", "cat /data/file", "hello").await?;
    test.wait_until(
        "nothing of the deleted pod is left on the node",
        async || {
            let left = test.node.leftovers().await?;
            Ok(Progress::of(left.is_empty(), &format_args!("{left:?}")))
        },
    )
    .await?;
    test.deferred("next", 1).await
}

const MANY_PODS: &str = "
apiVersion: v1
kind: Pod
metadata: {name: many}
spec:
  runtimeClassName: crust
  securityContext: {fsGroup: 2000}
  containers:
  - name: a
    image: busybox
    command: [sleep, '1000000']
    volumeMounts: [{name: a, mountPath: /a, subPath: sub}, {name: b, mountPath: /b}]
  volumes:
  - {name: a, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: crust-deferred}}}}
  - {name: b, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: crust-deferred}}}}
";

async fn many_pods(test: &Test<'_>) -> Result<()> {
    let names: Vec<String> = (1..=20).map(|number| format!("many-{number}")).collect();
    for name in &names {
        let mut pod = test.find("Pod/many")?;
        pod["metadata"]["name"] = json!(name);
        test.create_object(pod).await?;
    }
    for name in &names {
        test.running(name).await?;
    }
    for name in &names {
        test.expect(name, "touch /a/x /b/x; stat -c %g /a/x /b/x", "2000\n2000")
            .await?;
    }
    test.deferred("many-1", 2).await?;
    for name in &names {
        test.cluster
            .delete(&test.namespace, "Pod", name, None)
            .await?;
    }
    for name in &names {
        test.gone(&format!("Pod/{name}")).await?;
    }
    Ok(())
}

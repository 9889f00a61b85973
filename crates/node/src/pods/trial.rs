use super::config::{Node, Source};
use super::decide::{Next, Wanted, next};
use super::failures::{Failure, Failures};
use super::status::{Look, status};
use super::worker::Worker;
use super::*;
use crate::cri::Cri;
use crate::events::{Events, Regarding};
use crate::objects::manifest::{self, Object};
use crate::objects::{Objects, Pod};
use std::time::{Duration, Instant, SystemTime};

const S: &str = "/tmp/h/p8trial/s";

struct Bench {
    cri: Cri,
    worker: Worker,
    events: Events,
    objects: Objects,
    failures: Failures,
    last: Option<k8s_openapi::api::core::v1::PodStatus>,
}

impl Bench {
    fn new() -> Self {
        let cri = Cri::new(S.as_ref(), "trial");
        let events = Events::default();
        let node = Node {
            name: "trial".into(),
            logs: "/tmp/h/p8trial/logs".into(),
            cgroup_parent: "/p8trial".into(),
            memory: 8 << 30,
        };
        let mut objects = Objects::default();
        objects.insert(manifest::read("apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: crun}\nhandler: crun").unwrap().remove(0));
        Self {
            worker: Worker::new(cri.clone(), events.clone(), node),
            cri,
            events,
            objects,
            failures: Failures::default(),
            last: None,
        }
    }
    async fn one(&mut self, pod: &Pod, run: bool) -> Next {
        let seen = self.cri.pod(&pod.uid).await.unwrap();
        let held = self.failures.held(Instant::now());
        let now = SystemTime::now();
        let st = status(&Look {
            pod,
            observed: seen.as_ref(),
            failures: &self.failures,
            held: &held,
            runtime: "containerd",
            before: self.last.as_ref(),
            now,
        });
        self.worker.tell_waiting(pod, self.last.as_ref(), &st);
        self.last = Some(st);
        let wanted = if run {
            Wanted::Run {
                pod,
                volumes_ready: true,
                told: None,
            }
        } else {
            Wanted::End {
                grace: Duration::from_secs(1),
            }
        };
        let next = next(wanted, seen.as_ref(), &held, now);
        println!("  -> {next:?}");
        if let Next::Step(step) = &next {
            let t = Instant::now();
            let done = match step {
                PodStep::RunSandbox(it) => self
                    .worker
                    .run_sandbox(&self.objects, pod, it)
                    .await
                    .map(drop),
                PodStep::StartContainer(it) => {
                    let n = pod
                        .containers()
                        .find(|c| c.name == it.name)
                        .unwrap()
                        .volume_mounts
                        .iter()
                        .flatten()
                        .count();
                    let sources: Vec<_> = (0..n)
                        .map(|_| Source {
                            host_path: "/tmp/h/p8trial/vol".into(),
                            read_only: false,
                        })
                        .collect();
                    self.worker.start_container(pod, it, &sources).await
                }
                PodStep::PublishToRuntime { .. } => unreachable!(),
                PodStep::End(it) => self.worker.end(&Regarding::from(pod), it).await,
            };
            println!(
                "     {:?} in {:?}",
                done.as_ref().map_err(ToString::to_string),
                t.elapsed()
            );
            match &done {
                Ok(()) => self.failures.succeed(&step.subject()),
                Err(e) => self
                    .failures
                    .fail(step.subject(), Failure::from(e), Instant::now()),
            }
        }
        next
    }
    async fn settle(&mut self, pod: &Pod, run: bool, rounds: usize) {
        for _ in 0..rounds {
            match self.one(pod, run).await {
                Next::Step(_) => {}
                _ => tokio::time::sleep(Duration::from_millis(300)).await,
            }
        }
        println!(
            "{}",
            serde_json::to_string_pretty(self.last.as_ref().unwrap()).unwrap()
        );
    }
    fn told(&self) {
        for e in self.events.watch().0 {
            println!("EVENT {:?} {} x{} {}", e.kind, e.reason, e.count, e.message);
        }
    }
}
fn pod(text: &str) -> Pod {
    match manifest::read(text).unwrap().remove(0).object {
        Object::Pod(p) => *p,
        _ => panic!(),
    }
}

#[tokio::test]
async fn a_trial() {
    std::fs::create_dir_all("/tmp/h/p8trial/vol/").unwrap();
    std::fs::write("/tmp/h/p8trial/vol/f", "hello").unwrap();
    let nobody = Cri::new("/tmp/h/p8trial/nobody".as_ref(), "x");
    println!("{}", nobody.version().await.unwrap_err());
    let odd = Cri::new("/tmp/h/p8 trial/nobody".as_ref(), "x");
    println!("{}", odd.version().await.unwrap_err());
    let mut b = Bench::new();
    println!("{:?}", b.cri.version().await);
    let web = pod("
apiVersion: v1
kind: Pod
metadata: {name: web, uid: 11111111-aaaa}
spec:
  hostNetwork: true
  securityContext: {fsGroup: 777, runAsGroup: 55, runAsUser: 44}
  initContainers: [{name: one, image: 'p8.test/app:1', command: [/bin/sh, -c, 'echo init $(X)'], env: [{name: X, value: y}]}]
  containers:
  - {name: app, image: 'p8.test/app:1', command: [/bin/sh, -c, 'echo up; trap \"exit 0\" TERM; while true; do sleep 1; done'], volumeMounts: [{name: v, mountPath: /data}], resources: {limits: {cpu: 500m, memory: 64Mi}}, readinessProbe: {exec: {command: [x]}}}
  - {name: crash, image: 'p8.test/app:1', command: [/bin/sh, -c, 'echo crash; exit 3']}
  volumes: [{name: v, emptyDir: {}}]
");
    b.settle(&web, true, 9).await;
    let seen = b.cri.pods().await.unwrap();
    println!("{seen:#?}");
    let seen = &seen["11111111-aaaa"];
    let app = seen.latest("app").unwrap().id.clone();
    let cmd = |s: &str| vec!["/bin/sh".to_owned(), "-c".to_owned(), s.to_owned()];
    let done = b
        .cri
        .exec(
            &app,
            &cmd("id; env; cat /data/f; exit 7"),
            Some(Duration::from_secs(5)),
        )
        .await
        .unwrap();
    println!(
        "{} {}",
        done.exit_code,
        String::from_utf8_lossy(&done.stdout)
    );
    println!(
        "{:?}",
        b.cri
            .exec(&app, &cmd("sleep 10"), Some(Duration::from_millis(500)))
            .await
            .map_err(|e| e.to_string())
    );
    println!(
        "{:?}",
        b.cri
            .exec("nonesuch", &cmd("sleep 10"), None)
            .await
            .map_err(|e| e.to_string())
    );
    // the sandbox dies
    let s = seen.sandboxes[0].id.clone();
    let _ = tokio::process::Command::new("ctr")
        .args([
            "--address",
            S,
            "-n",
            "k8s.io",
            "task",
            "kill",
            "-s",
            "KILL",
            &s,
        ])
        .status()
        .await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    println!("=== sandbox killed");
    b.settle(&web, true, 8).await;
    println!("=== end");
    b.settle(&web, false, 4).await;
    println!("{:?}", b.cri.pods().await.unwrap());
    b.told();

    println!("=== never, on crun");
    let mut b = Bench::new();
    let never = pod("
apiVersion: v1
kind: Pod
metadata: {name: never, uid: 22222222-aaaa}
spec:
  hostNetwork: true
  runtimeClassName: crun
  restartPolicy: Never
  containers:
  - {name: app, image: 'p8.test/app:1', command: [/bin/true]}
  - {name: bad, image: 'p8.test/app:1', command: [/bin/nonesuch]}
");
    b.settle(&never, true, 6).await;
    b.settle(&never, false, 3).await;
    b.told();

    println!("=== images");
    let mut b = Bench::new();
    let image = pod("
apiVersion: v1
kind: Pod
metadata: {name: image, uid: 33333333-aaaa}
spec:
  hostNetwork: true
  containers:
  - {name: app, image: '127.0.0.1:9/none:1'}
  - {name: never, image: 'p8.test/none:1', imagePullPolicy: Never}
  - {name: root, image: 'p8.test/app:1', securityContext: {runAsNonRoot: true}}
");
    b.settle(&image, true, 6).await;
    b.settle(&image, false, 3).await;
    b.told();
    let mut b = Bench::new();
    let refused = pod("
apiVersion: v1
kind: Pod
metadata: {name: refused, uid: 44444444-aaaa}
spec:
  hostUsers: false
  containers:
  - {name: app, image: '127.0.0.1:9/none:1', envFrom: [{configMapRef: {name: x}}]}
");
    b.settle(&refused, true, 2).await;
    b.told();
    let mut b = Bench::new();
    let cni = pod("
apiVersion: v1
kind: Pod
metadata: {name: cni, uid: 55555555-aaaa}
spec:
  containers: [{name: app, image: 'p8.test/app:1'}]
");
    b.settle(&cni, true, 2).await;
    b.settle(&cni, false, 2).await;
    b.told();
}

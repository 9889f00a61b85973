//! What these tests begin with: a testbed whose crustlet hears from the container runtime by a relay, too.

use std::fmt;
use std::ops::Deref;

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::cri::CriRelay;
use runcrust_tests::csi::{CsiRelay, CsiVolume, filesystem};
use runcrust_tests::gc::gc;
use runcrust_tests::manifests::{Pod, Volume};
use runcrust_tests::{Containerd, Crustlet, Csi, Delegate, Node, Ops, Runtime, Testbed};

/// The classes of who is told by crustlet.
pub(crate) const TOLD: &str = "told";

/// A testbed between two relays, where root alone can change anything.
#[derive(Debug)]
pub(crate) struct Scene {
    testbed: Testbed,
    /// Before containerd.
    pub(crate) runtime: CriRelay,
}

impl Deref for Scene {
    type Target = Testbed;

    fn deref(&self) -> &Testbed {
        &self.testbed
    }
}

/// Who mounts a pod's volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// The runtime, which the driver tells (`defer_fs_ops`).
    Deferred,
    /// The driver.
    Plain,
    /// The runtime, which crustlet tells once the sandbox is there (KEP-2857's earlier draft).
    Told,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deferred => "deferred",
            Self::Plain => "plain",
            Self::Told => "told",
        })
    }
}

/// A volume of the driver's, and the claim that it is bound to.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) volume: CsiVolume,
    /// Its `PersistentVolume`'s name, which its directories have.
    pub(crate) pv: String,
    pub(crate) claim: String,
}

/// How often things happened since crustlet was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) reconstructed: u64,
    pub(crate) not_reconstructed: u64,
    pub(crate) cleaned: u64,
    pub(crate) not_cleaned: u64,
    /// Directories of pods that can't be removed.
    pub(crate) orphans: u64,
}

impl Scene {
    #[track_caller]
    pub(crate) fn new(delegate: Delegate) -> Self {
        Self::with(delegate, "", &[])
    }

    /// With lines of runcrust's configuration, and arguments of crustlet's.
    #[track_caller]
    pub(crate) fn with(delegate: Delegate, runcrust: &str, arguments: &[&str]) -> Self {
        let node = Node::root_only(delegate, runcrust);
        let ops = Ops::start(&node);
        let csi = Csi::start(&node);
        let home = node.handler().path().to_owned();
        let relay = CsiRelay::start(&home.with_file_name("relay.sock"), csi.socket());
        let (crust, plain) = (node.handler().runtime(), Runtime::bare(delegate));
        let containerd = Containerd::start(node.dir(), &[("crust", &crust), ("plain", &plain)]);
        let runtime = CriRelay::start(&home.with_file_name("cri.sock"), &containerd.socket());
        let endpoint = format!(
            "--container-runtime-endpoint=unix://{}",
            runtime.socket().display()
        );
        let all = [&[endpoint.as_str()], arguments].concat();
        let crustlet = Crustlet::with(&node, &containerd, relay.socket(), &all);
        let testbed = Testbed {
            crustlet,
            containerd,
            relay,
            csi,
            ops,
            node,
        };
        Self { testbed, runtime }
    }

    /// Starts crustlet, killed before, with further arguments.
    #[track_caller]
    pub(crate) fn start(&self, arguments: &[&str]) {
        self.crustlet.spawn(self.crustlet.command(arguments));
        // Whoever answers serves metrics, too.
        let _ = self.crustlet.all("pods");
    }

    /// SIGKILL, and another one.
    #[track_caller]
    pub(crate) fn restart(&self) {
        self.crustlet.kill();
        self.start(&[]);
    }

    /// Forgets what drivers and the runtime were asked.
    pub(crate) fn clear_requests(&self) {
        self.relay.clear_requests();
        self.runtime.clear_requests();
    }

    /// Waits until the runtime was asked once more what there is, and the answer was heard: it isn't asked again
    /// before. What crustlet would do about it, it has begun by then.
    #[track_caller]
    pub(crate) fn wait_look(&self) {
        let before = self.runtime.count("ListPodSandbox");
        self.crustlet.wait("crustlet to look", || {
            self.runtime.count("ListPodSandbox") >= before + 2
        });
    }

    /// Nothing was asked for that takes back a volume or a pod.
    #[track_caller]
    pub(crate) fn assert_nothing_taken_back(&self) {
        let is_end = |call: &str| call.starts_with("NodeUn");
        let steps = self.relay.steps();
        assert!(!steps.iter().any(|it| is_end(it)), "{steps:?}");
        let is_end = |call: &str| call.starts_with("Stop") || call.starts_with("Remove");
        let steps = self.runtime.steps();
        assert!(!steps.iter().any(|it| is_end(it)), "{steps:?}");
    }

    /// Waits until a pod's volume is measured: it is known to be there.
    #[track_caller]
    pub(crate) fn wait_measured(&self, storages: &[&Storage]) {
        let name = "kubelet_volume_stats_capacity_bytes";
        self.crustlet.wait("volumes to be measured", || {
            let metrics = self.crustlet.metrics();
            storages.iter().all(|it| {
                let labels = [("persistentvolumeclaim", it.claim.as_str())];
                metrics.value(name, &labels).is_some()
            })
        });
    }

    /// What was counted.
    #[track_caller]
    pub(crate) fn counted(&self) -> Counted {
        let metrics = self.crustlet.metrics();
        let count = |name: &str| {
            let text = metrics.count(name, &[]).to_string();
            text.parse().unwrap_or_else(|_| panic!("{name} {text}"))
        };
        Counted {
            reconstructed: count("reconstruct_volume_operations_total"),
            not_reconstructed: count("reconstruct_volume_operations_errors_total"),
            cleaned: count("force_cleaned_failed_volume_operations_total"),
            not_cleaned: count("force_cleaned_failed_volume_operation_errors_total"),
            orphans: count("orphaned_volumes_cleanup_errors_total"),
        }
    }

    /// A claim by this name, of a volume with an ext4.
    #[track_caller]
    pub(crate) fn claim(&self, name: &str) -> Storage {
        self.claim_of(name, |volume| volume)
    }

    /// The same with what else its `PersistentVolume` says.
    #[track_caller]
    pub(crate) fn claim_of(&self, name: &str, say: impl FnOnce(Volume) -> Volume) -> Storage {
        let volume = self.volume(name, filesystem("ext4"));
        let pv = format!("pv-{name}");
        let object = say(Volume::new(&pv, &volume));
        self.apply(&pv, &[&object, &object.claim(name)]);
        Storage {
            volume,
            pv,
            claim: name.to_owned(),
        }
    }

    /// Writes into a pod's manifest that it is to end.
    pub(crate) fn delete(&self, pod: &Pod) {
        let text = pod.to_string();
        let head = format!("metadata:\n  name: {}\n", pod.name());
        let deleted = text.replacen(
            &head,
            &format!("{head}  deletionTimestamp: \"2026-01-02T03:04:05Z\"\n"),
            1,
        );
        assert_ne!(text, deleted);
        self.crustlet.write(pod.name(), &deleted);
    }

    /// Waits until a pod has a container that runs, which its phase doesn't tell; all there is of it is one sandbox
    /// then.
    #[track_caller]
    pub(crate) fn wait_runs(&self, pod: &Pod) {
        self.crustlet.wait_pod(pod.name(), "Running");
        self.crustlet.wait("a container to run", || {
            let pod = self.crustlet.pod(pod.name());
            pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        });
        let sandboxes = self.sandboxes(pod);
        assert_eq!(sandboxes.len(), 1, "{sandboxes:?}");
    }

    /// A pod's volume is where it has to be.
    #[track_caller]
    pub(crate) fn assert_there(&self, pod: &Pod, storage: &Storage, how: How) {
        let Storage { pv, volume, .. } = storage;
        match how {
            How::Deferred => self.assert_deferred(pod, pv, volume),
            How::Plain => self.assert_plain(pod, pv, volume),
            How::Told => self.assert_not_on_the_host(pod, pv, volume),
        }
    }

    /// How often a pod's container has begun, as its volume says.
    #[track_caller]
    pub(crate) fn begun(&self, pod: &Pod) -> usize {
        let file = format!("/data/begun-by-{}", pod.name());
        self.sh(pod, &format!("cat {file}")).lines().count()
    }

    /// Each `NodeUnpublishVolume` was as the publication was.
    #[track_caller]
    pub(crate) fn assert_unpublished(&self, how: How) {
        for request in self.relay.requests::<NodeUnpublishVolumeRequest>() {
            assert_eq!(request.defer_fs_ops, how == How::Deferred, "{request:?}");
        }
    }

    /// Nothing is left of any pod, nor of volumes on the node.
    #[track_caller]
    pub(crate) fn assert_nothing_left(&self, all: &[&Storage]) {
        self.crustlet.wait_no_volumes();
        self.crustlet.wait("all sandboxes to be removed", || {
            self.cri().pods().expect("ListPodSandbox").is_empty()
        });
        gc(&self.node, &[]);
        let volumes: Vec<&CsiVolume> = all.iter().map(|storage| &storage.volume).collect();
        self.testbed.assert_nothing_left(&volumes);
    }
}

/// A pod with a claim's volume at `/data`. Its container writes a line there whenever it begins, and
/// ends when it is told to.
pub(crate) fn pod_with(name: &str, storage: &Storage, how: How) -> Pod {
    let claim = &storage.claim;
    let pod = Pod::new(name).script(&format!(
        "trap 'exit 0' TERM; echo begun >> /data/begun-by-{name}; sync; sleep 1000000 & wait"
    ));
    let pod = match how {
        How::Deferred => pod.deferred(claim),
        How::Plain => pod.claim(claim),
        How::Told => pod.class(TOLD).claim(claim),
    };
    pod.mount(claim, "/data")
}

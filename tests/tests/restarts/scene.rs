//! The fixture of this suite: a testbed with a second relay, between crustlet and the container runtime.

use std::fmt;
use std::ops::Deref;

use crust_proto::csi::v1::NodeUnpublishVolumeRequest;
use runcrust_tests::csi::{CsiRelay, CsiVolume, filesystem};
use runcrust_tests::gc::gc;
use runcrust_tests::manifests::{Pod, Volume};
use runcrust_tests::{Containerd, CriRelay, Crustlet, Csi, Delegate, Node, Ops, Runtime, Testbed};

/// The name of the classes with runtime-assisted mounts (KEP-2857's earlier draft).
pub(crate) const ASSISTED: &str = "assisted";

/// A testbed with two relays, on a node that only root can change.
#[derive(Debug)]
pub(crate) struct Scene {
    testbed: Testbed,
    /// The relay in front of containerd.
    pub(crate) runtime: CriRelay,
}

impl Deref for Scene {
    type Target = Testbed;

    fn deref(&self) -> &Testbed {
        &self.testbed
    }
}

/// The way in which a pod's volume is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mounting {
    /// The runtime mounts it, from the driver's metadata (`defer_fs_ops`).
    Deferred,
    /// The driver mounts it.
    Plain,
    /// The runtime mounts it when crustlet publishes it to the existing sandbox (KEP-2857's earlier draft).
    Assisted,
}

impl fmt::Display for Mounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deferred => "deferred",
            Self::Plain => "plain",
            Self::Assisted => "assisted",
        })
    }
}

/// A volume of the driver, and the claim that it is bound to.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) volume: CsiVolume,
    /// The name of the `PersistentVolume`. The volume's directories have the same name.
    pub(crate) pv: String,
    pub(crate) claim: String,
}

/// crustlet's counters since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
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

    /// Starts a testbed with further lines of runcrust's configuration and arguments of crustlet.
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

    /// Starts crustlet again with further arguments, and waits until it answers.
    #[track_caller]
    pub(crate) fn start(&self, arguments: &[&str]) {
        self.crustlet.spawn(self.crustlet.command(arguments));
        // An agent that answers also serves metrics.
        let _ = self.crustlet.all("pods");
    }

    /// Kills crustlet with SIGKILL, and starts it again.
    #[track_caller]
    pub(crate) fn restart(&self) {
        self.crustlet.kill();
        self.start(&[]);
    }

    /// Clears the requests that the relays have recorded.
    pub(crate) fn clear_requests(&self) {
        self.relay.clear_requests();
        self.runtime.clear_requests();
    }

    /// Waits until crustlet has listed the runtime's sandboxes once more and has received the answer, which it does
    /// before it lists them again. By then it has started whatever it does about them.
    #[track_caller]
    pub(crate) fn wait_for_relist(&self) {
        let before = self.runtime.count("ListPodSandbox");
        self.crustlet.wait("crustlet to list the sandboxes", || {
            self.runtime.count("ListPodSandbox") >= before + 2
        });
    }

    /// Asserts that no call was made that removes a volume or a pod.
    #[track_caller]
    pub(crate) fn assert_nothing_removed(&self) {
        let is_end = |call: &str| call.starts_with("NodeUn");
        let steps = self.relay.steps();
        assert!(!steps.iter().any(|it| is_end(it)), "{steps:?}");
        let is_end = |call: &str| call.starts_with("Stop") || call.starts_with("Remove");
        let steps = self.runtime.steps();
        assert!(!steps.iter().any(|it| is_end(it)), "{steps:?}");
    }

    /// Waits until the volumes have statistics, which means that crustlet knows that they are mounted.
    #[track_caller]
    pub(crate) fn wait_for_stats(&self, storages: &[&Storage]) {
        let name = "kubelet_volume_stats_capacity_bytes";
        self.crustlet.wait("statistics of the volumes", || {
            let metrics = self.crustlet.metrics();
            storages.iter().all(|it| {
                let labels = [("persistentvolumeclaim", it.claim.as_str())];
                metrics.value(name, &labels).is_some()
            })
        });
    }

    /// Reads the counters from crustlet's metrics.
    #[track_caller]
    pub(crate) fn counters(&self) -> Counters {
        let metrics = self.crustlet.metrics();
        let count = |name: &str| {
            let text = metrics.count(name, &[]).to_string();
            text.parse().unwrap_or_else(|_| panic!("{name} {text}"))
        };
        Counters {
            reconstructed: count("reconstruct_volume_operations_total"),
            not_reconstructed: count("reconstruct_volume_operations_errors_total"),
            cleaned: count("force_cleaned_failed_volume_operations_total"),
            not_cleaned: count("force_cleaned_failed_volume_operation_errors_total"),
            orphans: count("orphaned_volumes_cleanup_errors_total"),
        }
    }

    /// Creates a claim with this name, bound to a volume with an ext4.
    #[track_caller]
    pub(crate) fn claim(&self, name: &str) -> Storage {
        self.claim_with(name, |volume| volume)
    }

    /// Like [`Self::claim`]. `customize` changes the `PersistentVolume`.
    #[track_caller]
    pub(crate) fn claim_with(
        &self,
        name: &str,
        customize: impl FnOnce(Volume) -> Volume,
    ) -> Storage {
        let volume = self.volume(name, filesystem("ext4"));
        let pv = format!("pv-{name}");
        let object = customize(Volume::new(&pv, &volume));
        self.apply(&pv, &[&object, &object.claim(name)]);
        Storage {
            volume,
            pv,
            claim: name.to_owned(),
        }
    }

    /// Writes a deletion timestamp into a pod's manifest.
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

    /// Waits until a pod's container runs, which its phase does not show. Asserts that the pod has one sandbox.
    #[track_caller]
    pub(crate) fn wait_running(&self, pod: &Pod) {
        self.crustlet.wait_pod(pod.name(), "Running");
        self.crustlet.wait("a container to run", || {
            let pod = self.crustlet.pod(pod.name());
            pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
        });
        let sandboxes = self.sandboxes(pod);
        assert_eq!(sandboxes.len(), 1, "{sandboxes:?}");
    }

    /// Asserts that a pod's volume is mounted where it has to be, and only there.
    #[track_caller]
    pub(crate) fn assert_mounted(&self, pod: &Pod, storage: &Storage, mounting: Mounting) {
        let Storage { pv, volume, .. } = storage;
        match mounting {
            Mounting::Deferred => self.assert_deferred(pod, pv, volume),
            Mounting::Plain => self.assert_plain(pod, pv, volume),
            Mounting::Assisted => self.assert_not_on_the_host(pod, pv, volume),
        }
    }

    /// Returns how often a pod's container has started, from the file that it writes to its volume.
    #[track_caller]
    pub(crate) fn start_count(&self, pod: &Pod) -> usize {
        let file = format!("/data/begun-by-{}", pod.name());
        self.sh(pod, &format!("cat {file}")).lines().count()
    }

    /// Asserts that each `NodeUnpublishVolume` had the `defer_fs_ops` of the publish.
    #[track_caller]
    pub(crate) fn assert_unpublished(&self, mounting: Mounting) {
        for request in self.relay.requests::<NodeUnpublishVolumeRequest>() {
            assert_eq!(
                request.defer_fs_ops,
                mounting == Mounting::Deferred,
                "{request:?}"
            );
        }
    }

    /// Waits until nothing is left of any pod, and asserts that nothing is left of volumes on the node.
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

/// A pod with the volume of a claim at `/data`. Its container writes a line there whenever it starts, and ends on
/// SIGTERM.
pub(crate) fn pod_with(name: &str, storage: &Storage, mounting: Mounting) -> Pod {
    let claim = &storage.claim;
    let pod = Pod::new(name).script(&format!(
        "trap 'exit 0' TERM; echo begun >> /data/begun-by-{name}; sync; sleep 1000000 & wait"
    ));
    let pod = match mounting {
        Mounting::Deferred => pod.deferred(claim),
        Mounting::Plain => pod.claim(claim),
        Mounting::Assisted => pod.class(ASSISTED).claim(claim),
    };
    pod.mount(claim, "/data")
}

//! All that a deferred volume goes through, and each part is real: crustlet, containerd, runcrust on a delegate,
//! crust-csi, `crust_ops`.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::VolumeCapability;
use serde_json::Value;

use crate::cri::runtime_v1::{Container, ContainerState, PodSandboxState};
use crate::csi::{CsiRelay, CsiVolume, create_request};
use crate::gc::gc;
use crate::manifests::{Pod, documents};
use crate::node::WAIT_TIMEOUT;
use crate::{Containerd, Cri, Crustlet, Csi, Delegate, Node, Ops, Runtime, holds_within, host};

/// How the parts are started; by their defaults where nothing is said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup<'s> {
    /// Lines of runcrust's configuration.
    pub runcrust: &'s str,
    /// crust-csi's arguments: `["--without", "DEFER_FS_OPS"]`.
    pub driver: &'s [&'s str],
    /// crustlet's: `["--feature-gates=RuntimeAssistedMount=false"]`.
    pub agent: &'s [&'s str],
    /// crustlet's admission policy.
    pub policy: Option<&'s str>,
    /// Whether crustlet has the driver's own socket, so that it notices its restarts, and no [`Relay`]'s.
    pub is_direct: bool,
}

/// The parts, each of which can be killed and restarted. They are dropped from the first to the last.
#[derive(Debug)]
pub struct Testbed {
    /// kubelet's part.
    pub crustlet: Crustlet,
    /// With the handlers `crust`, which is runcrust, and `plain`, its delegate alone.
    pub containerd: Containerd,
    /// Between crustlet and the driver.
    pub relay: CsiRelay,
    /// The driver.
    pub csi: Csi,
    /// Whom it defers to.
    pub ops: Ops,
    /// runcrust, and where all of them are.
    pub node: Node,
}

impl Testbed {
    /// All of them started by their defaults.
    #[track_caller]
    pub fn new(delegate: Delegate) -> Self {
        Self::with(delegate, &Setup::default())
    }

    /// All of them started.
    #[track_caller]
    pub fn with(delegate: Delegate, setup: &Setup<'_>) -> Self {
        let node = Node::trusted(delegate, setup.runcrust);
        let ops = Ops::start(&node);
        let csi = Csi::with(&node, setup.driver);
        let socket = csi.socket().with_file_name("relay.sock");
        let relay = CsiRelay::start(&socket, csi.socket());
        let (crust, plain) = (node.handler().runtime(), Runtime::bare(delegate));
        let containerd = Containerd::start(node.dir(), &[("crust", &crust), ("plain", &plain)]);
        let driver = if setup.is_direct {
            csi.socket()
        } else {
            relay.socket()
        };
        let mut arguments: Vec<&str> = setup.agent.to_vec();
        let policy = setup.policy.map(|text| {
            let file = policy_of(&node);
            fs::write(&file, text).expect("a policy");
            format!("--admission-policy={}", file.display())
        });
        arguments.extend(policy.as_deref());
        Self {
            crustlet: Crustlet::with(&node, &containerd, driver, &arguments),
            containerd,
            relay,
            csi,
            ops,
            node,
        }
    }

    /// Replaces the agent's admission policy, where it was given one, by SIGKILL and another agent.
    #[track_caller]
    pub fn change_policy(&self, text: &str) {
        fs::write(policy_of(&self.node), text).expect("a policy");
        self.crustlet.restart(&[]);
    }

    /// Has a volume made by the driver, no larger than its file system needs.
    #[track_caller]
    pub fn volume(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        self.csi.provision_volume(create_request(name, capability))
    }

    /// Writes objects into a file of manifests.
    pub fn apply(&self, file: &str, objects: &[&dyn Display]) {
        self.crustlet.write(file, &documents(objects));
    }

    /// Writes a pod's manifest, in a file of its name.
    pub fn apply_pod(&self, pod: &Pod) {
        self.apply(pod.name(), &[pod]);
    }

    /// The same, and waits until it runs.
    #[track_caller]
    pub fn run(&self, pod: &Pod) {
        self.apply_pod(pod);
        self.crustlet.wait_pod(pod.name(), "Running");
    }

    /// Removes a pod's manifest, and waits until nothing is known of it.
    #[track_caller]
    pub fn end(&self, pod: &Pod) {
        self.crustlet.remove(pod.name());
        self.crustlet.wait_gone(&pod.uid());
    }

    /// A pod's sandboxes that run, by their ids.
    pub fn sandboxes(&self, pod: &Pod) -> Vec<String> {
        let pods = self.cri().pods().expect("ListPodSandbox").into_iter();
        let is_it = |uid: &str| uid == pod.uid();
        let of_it = pods.filter(|it| {
            it.state() == PodSandboxState::SandboxReady
                && it.metadata.as_ref().is_some_and(|it| is_it(&it.uid))
        });
        of_it.map(|it| it.id).collect()
    }

    /// A pod's container that runs, by its id.
    #[track_caller]
    pub fn container(&self, pod: &Pod) -> String {
        let found = self.running(pod).into_iter().next();
        found.unwrap_or_else(|| panic!("pod {} has no container", pod.name()))
    }

    /// The same, by its name in the pod.
    #[track_caller]
    pub fn container_named(&self, pod: &Pod, name: &str) -> String {
        let is_it = |it: &Container| it.metadata.as_ref().is_some_and(|it| it.name == name);
        let mut running = self.running_containers(pod).into_iter();
        let found = running.find(is_it);
        let none = || panic!("pod {} has no container {name}", pod.name());
        found.unwrap_or_else(none).id
    }

    /// A pod's containers that run, by their ids.
    pub fn running(&self, pod: &Pod) -> Vec<String> {
        let running = self.running_containers(pod).into_iter();
        running.map(|it| it.id).collect()
    }

    fn running_containers(&self, pod: &Pod) -> Vec<Container> {
        let sandboxes = self.sandboxes(pod).into_iter();
        let containers =
            sandboxes.flat_map(|id| self.cri().containers(&id).expect("ListContainers"));
        let running = containers.filter(|it| it.state() == ContainerState::ContainerRunning);
        running.collect()
    }

    /// The trimmed output of a script in a pod's container.
    #[track_caller]
    pub fn sh(&self, pod: &Pod, script: &str) -> String {
        self.cri().sh(&self.container(pod), script)
    }

    /// containerd's calls.
    pub fn cri(&self) -> &Cri {
        self.containerd.cri()
    }

    /// A volume's target path in a pod.
    pub fn target(&self, pod: &Pod, volume: &str) -> PathBuf {
        self.crustlet.target(&pod.uid(), volume)
    }

    /// What is staged for a pod's volume; `None`: nothing.
    pub fn mount_info(&self, pod: &Pod, volume: &str) -> Option<Value> {
        let entry = self.node.entry(&self.target(pod, volume));
        let text = fs::read_to_string(entry.join("mountInfo.json")).ok()?;
        Some(serde_json::from_str(&text).expect("a mountInfo.json"))
    }

    /// The host's mounts of a staged volume, as lines of mountinfo.
    #[track_caller]
    pub fn host_mounts(&self, volume: &CsiVolume) -> Vec<String> {
        host::mounts_of_device(&self.csi.device(&volume.id))
    }

    /// A pod's volume is left to the runtime by the driver, and on record as such: on the host there is nothing of it
    /// but what is staged.
    #[track_caller]
    pub fn assert_deferred(&self, pod: &Pod, name: &str, volume: &CsiVolume) {
        self.assert_not_on_the_host(pod, name, volume);
        let data = self.crustlet.vol_data(&pod.uid(), name);
        assert_eq!(data["deferFSMount"], "true", "{data}");
    }

    /// The same, whoever has told the runtime.
    #[track_caller]
    pub fn assert_not_on_the_host(&self, pod: &Pod, name: &str, volume: &CsiVolume) {
        let info = self.mount_info(pod, name);
        let info = info.unwrap_or_else(|| panic!("{name} of {} isn't staged", pod.name()));
        let device = self.csi.device(&volume.id);
        assert_eq!(info["device"], crate::node::utf8(&device), "{info}");
        assert_eq!(self.host_mounts(volume), Vec::<String>::new());
        assert_empty(&self.crustlet.staging(&volume.id));
        assert_no_files(&self.target(pod, name));
    }

    /// A pod's volume is mounted by the driver, in the ordinary way; nothing is staged.
    #[track_caller]
    pub fn assert_plain(&self, pod: &Pod, name: &str, volume: &CsiVolume) {
        assert_eq!(self.mount_info(pod, name), None);
        let target = self.target(pod, name);
        let mounts = host::mounts_below(&target);
        assert_eq!(mounts, std::slice::from_ref(&target));
        assert!(!self.host_mounts(volume).is_empty());
        let data = self.crustlet.vol_data(&pod.uid(), name);
        assert_ne!(data["deferFSMount"], "true", "{data}");
    }

    /// All pods have ended: no mount, no loop device, no directory, no sandbox and no record is left.
    #[track_caller]
    pub fn assert_nothing_left(&self, volumes: &[&CsiVolume]) {
        self.crustlet.wait_no_volumes();
        self.crustlet.wait("all sandboxes to be removed", || {
            self.cri().pods().expect("ListPodSandbox").is_empty()
        });
        // Bundles that went after the last volume are the timer's of crust_ops, which does what `gc` does.
        gc(&self.node, &[]);
        // Hooks take records away when containers have ended.
        holds_within(WAIT_TIMEOUT, || {
            self.node.records().is_empty() && self.node.volume_locks().is_empty()
        });
        self.node.assert_nothing_left();
        assert_eq!(
            host::mounts_below(self.crustlet.root()),
            Vec::<PathBuf>::new()
        );
        for volume in volumes {
            assert_eq!(self.csi.devices(&volume.id), Vec::<PathBuf>::new());
        }
    }
}

fn policy_of(node: &Node) -> PathBuf {
    node.handler().path().with_file_name("policy.yaml")
}

#[track_caller]
fn assert_empty(directory: &Path) {
    let entries = fs::read_dir(directory);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let names: Vec<_> = entries.map(|it| it.expect("an entry").path()).collect();
    assert_eq!(names, Vec::<PathBuf>::new());
}

/// containerd makes a source's directories, which stay empty.
#[track_caller]
fn assert_no_files(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a target path") {
        let entry = entry.expect("an entry");
        assert!(entry.file_type().expect("its type").is_dir(), "{entry:?}");
        assert_no_files(&entry.path());
    }
}

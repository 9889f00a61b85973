//! A node on which deferred volumes work from end to end with the real programs: crustlet, containerd, runcrust with a
//! delegate, crust-csi and `crust_ops`.

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

/// The settings of the programs. The defaults of the programs apply to everything else.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup<'s> {
    /// Extra lines of runcrust's configuration.
    pub runcrust: &'s str,
    /// Arguments of crust-csi, such as `["--without", "DEFER_FS_OPS"]`.
    pub driver: &'s [&'s str],
    /// Arguments of crustlet, such as `["--feature-gates=RuntimeAssistedMount=false"]`.
    pub agent: &'s [&'s str],
    /// The content of crustlet's admission policy.
    pub policy: Option<&'s str>,
    /// Whether crustlet uses the driver's own socket instead of the [`CsiRelay`]. crustlet then notices when the driver
    /// restarts.
    pub is_direct: bool,
}

/// The programs, each of which can be killed and restarted. They are dropped in the order of the fields.
#[derive(Debug)]
pub struct Testbed {
    /// The agent, which does kubelet's part.
    pub crustlet: Crustlet,
    /// containerd with the handlers `crust` (runcrust) and `plain` (its delegate).
    pub containerd: Containerd,
    /// The relay between crustlet and the driver.
    pub relay: CsiRelay,
    /// The CSI driver.
    pub csi: Csi,
    /// The daemon that the driver defers to.
    pub ops: Ops,
    /// The node with runcrust.
    pub node: Node,
}

impl Testbed {
    /// Starts all programs with default settings.
    #[track_caller]
    pub fn new(delegate: Delegate) -> Self {
        Self::with(delegate, &Setup::default())
    }

    /// Starts all programs with these settings.
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

    /// Replaces the agent's admission policy, kills the agent and starts it again.
    #[track_caller]
    pub fn change_policy(&self, text: &str) {
        fs::write(policy_of(&self.node), text).expect("a policy");
        self.crustlet.restart(&[]);
    }

    /// Creates a volume of the smallest size for its file system, without a staging directory.
    #[track_caller]
    pub fn volume(&self, name: &str, capability: VolumeCapability) -> CsiVolume {
        self.csi.provision_volume(create_request(name, capability))
    }

    /// Writes objects to a file of manifests.
    pub fn apply(&self, file: &str, objects: &[&dyn Display]) {
        self.crustlet.write(file, &documents(objects));
    }

    /// Writes a pod's manifest to a file with the pod's name.
    pub fn apply_pod(&self, pod: &Pod) {
        self.apply(pod.name(), &[pod]);
    }

    /// Writes a pod's manifest and waits until the pod is running.
    #[track_caller]
    pub fn run(&self, pod: &Pod) {
        self.apply_pod(pod);
        self.crustlet.wait_pod(pod.name(), "Running");
    }

    /// Removes a pod's manifest and waits until the pod is gone.
    #[track_caller]
    pub fn end(&self, pod: &Pod) {
        self.crustlet.remove(pod.name());
        self.crustlet.wait_gone(&pod.uid());
    }

    /// Returns the ids of a pod's running sandboxes.
    pub fn sandboxes(&self, pod: &Pod) -> Vec<String> {
        let pods = self.cri().pods().expect("ListPodSandbox").into_iter();
        let matches = |uid: &str| uid == pod.uid();
        let of_it = pods.filter(|it| {
            it.state() == PodSandboxState::SandboxReady
                && it.metadata.as_ref().is_some_and(|it| matches(&it.uid))
        });
        of_it.map(|it| it.id).collect()
    }

    /// Returns the id of a pod's first running container.
    #[track_caller]
    pub fn container(&self, pod: &Pod) -> String {
        let found = self.running(pod).into_iter().next();
        found.unwrap_or_else(|| panic!("pod {} has no container", pod.name()))
    }

    /// Returns the id of a pod's running container with this name.
    #[track_caller]
    pub fn container_named(&self, pod: &Pod, name: &str) -> String {
        let matches = |it: &Container| it.metadata.as_ref().is_some_and(|it| it.name == name);
        let mut running = self.running_containers(pod).into_iter();
        let found = running.find(matches);
        let none = || panic!("pod {} has no container {name}", pod.name());
        found.unwrap_or_else(none).id
    }

    /// Returns the ids of a pod's running containers.
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

    /// Runs a script in a pod's first running container, which must succeed, and returns its trimmed output.
    #[track_caller]
    pub fn sh(&self, pod: &Pod, script: &str) -> String {
        self.cri().sh(&self.container(pod), script)
    }

    /// Returns the client of containerd's CRI.
    pub fn cri(&self) -> &Cri {
        self.containerd.cri()
    }

    /// Returns a volume's target path in a pod.
    pub fn target(&self, pod: &Pod, volume: &str) -> PathBuf {
        self.crustlet.target(&pod.uid(), volume)
    }

    /// Reads the staged metadata of a pod's volume; `None` if nothing is staged.
    pub fn mount_info(&self, pod: &Pod, volume: &str) -> Option<Value> {
        let entry = self.node.entry(&self.target(pod, volume));
        let text = fs::read_to_string(entry.join("mountInfo.json")).ok()?;
        Some(serde_json::from_str(&text).expect("a mountInfo.json"))
    }

    /// Returns the host's mounts of a staged volume, as lines of mountinfo.
    #[track_caller]
    pub fn host_mounts(&self, volume: &CsiVolume) -> Vec<String> {
        host::mounts_of_device(&self.csi.device(&volume.id))
    }

    /// Checks that a pod's volume is deferred and recorded as deferred. The host may only have the staged entry, and no
    /// mount or file of the volume.
    #[track_caller]
    pub fn assert_deferred(&self, pod: &Pod, name: &str, volume: &CsiVolume) {
        self.assert_not_on_the_host(pod, name, volume);
        let data = self.crustlet.vol_data(&pod.uid(), name);
        assert_eq!(data["deferFSMount"], "true", "{data}");
    }

    /// Checks that a pod's volume is staged and not mounted on the host, without checking the agent's record.
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

    /// Checks that the driver has mounted a pod's volume, and that nothing is staged.
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

    /// Checks after all pods have ended that no mount, loop device, directory, sandbox or record is left.
    #[track_caller]
    pub fn assert_nothing_left(&self, volumes: &[&CsiVolume]) {
        self.crustlet.wait_no_volumes();
        self.crustlet.wait("all sandboxes to be removed", || {
            self.cri().pods().expect("ListPodSandbox").is_empty()
        });
        // Bundles that are removed after the last volume are left to the timer of crust_ops, which runs what `gc` runs.
        gc(&self.node, &[]);
        // Hooks remove records after containers have ended.
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

/// Checks that a directory contains only directories, which containerd creates for the sources of mounts.
#[track_caller]
fn assert_no_files(directory: &Path) {
    for entry in fs::read_dir(directory).expect("a target path") {
        let entry = entry.expect("an entry");
        assert!(
            entry.file_type().expect("a file type").is_dir(),
            "{entry:?}"
        );
        assert_no_files(&entry.path());
    }
}

//! Pods that run one after the other with the same two volumes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::random::Random;
use runcrust_tests::volume::fsck;
use runcrust_tests::{LoopDevice, holds_within};

use crate::kills::Tally;
use crate::life::PodLife;
use crate::node::SoakNode;

/// The timeout for retrying an unstage, which kubelet retries too. Under load, a killed process may take long to exit.
const UNSTAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// A volume, and the least number of lines that each app has written to it.
pub(crate) struct Volume {
    pub(crate) device: LoopDevice,
    pub(crate) written: [u64; 2],
}

/// Runs pods one after the other.
pub(crate) struct PodSequence<'a> {
    pub(crate) soak_node: &'a SoakNode,
    pub(crate) volumes: [Volume; 2],
    pub(crate) random: Random,
    pub(crate) tally: Tally,
}

impl<'a> PodSequence<'a> {
    pub(crate) fn new(soak_node: &'a SoakNode, random: Random) -> Self {
        let volumes = ["ext4", "xfs"].map(|fstype| Volume {
            device: soak_node.node.formatted(fstype),
            written: [0; 2],
        });
        Self {
            soak_node,
            volumes,
            random,
            tally: Tally::default(),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Runs one pod.
    pub(crate) fn run_pod(&mut self) {
        let uid = self.soak_node.uid();
        let targets = self.stage(&uid);
        PodLife::new(self, &uid, &targets).run();
        for target in &targets {
            self.unstage(target);
            // kubelet removes the directory after the unpublish. It must be empty: nothing was written to the host's
            // disk.
            fs::remove_dir(target).expect("an empty target");
        }
        let pod = self
            .soak_node
            .node
            .handler()
            .kubelet_dir()
            .join("pods")
            .join(uid);
        fs::remove_dir_all(pod).expect("the pod's directory");
    }

    fn stage(&self, uid: &str) -> [PathBuf; 2] {
        let SoakNode { node, ops, .. } = self.soak_node;
        [0, 1].map(|index| {
            let target = node.target(uid, &format!("pv-{index}"));
            let mut request = stage_request(&target, &self.volumes[index].device);
            "2000".clone_into(&mut request.volume_supplemental_group);
            ops.stage(request).expect("RuntimeStageVolume");
            target
        })
    }

    fn unstage(&self, target: &Path) {
        let mut last = Ok(());
        let unstaged = holds_within(UNSTAGE_TIMEOUT, || {
            last = self.soak_node.ops.unstage(target);
            last.is_ok()
        });
        assert!(unstaged, "{last:?}");
    }

    /// Asserts that the volumes are not in use, and that their file systems are consistent.
    pub(crate) fn assert_consistent(&self) {
        for Volume { device, .. } in &self.volumes {
            device.wait_until_free(WAIT_TIMEOUT);
            assert_eq!(device.host_mounts(), Vec::<String>::new());
            fsck(device.fstype(), device.path());
        }
    }
}

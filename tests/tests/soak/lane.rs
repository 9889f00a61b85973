//! Pods one after the other, with the same two volumes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::ops::stage_request;
use runcrust_tests::random::Random;
use runcrust_tests::volume::fsck;
use runcrust_tests::{LoopDevice, holds_within};

use crate::ground::Ground;
use crate::kills::Tally;
use crate::life::Life;

/// kubelet unpublishes again and again; what is killed under load may take its time.
const UNSTAGED: Duration = Duration::from_secs(60);

/// A volume, and how many lines each app has on it at least.
pub(crate) struct Volume {
    pub(crate) device: LoopDevice,
    pub(crate) written: [u64; 2],
}

/// Where pods live one after the other.
pub(crate) struct Lane<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) volumes: [Volume; 2],
    pub(crate) random: Random,
    pub(crate) tally: Tally,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(ground: &'a Ground, random: Random) -> Self {
        let volumes = ["ext4", "xfs"].map(|fstype| Volume {
            device: ground.node.formatted(fstype),
            written: [0; 2],
        });
        Self {
            ground,
            volumes,
            random,
            tally: Tally::default(),
        }
    }

    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// One pod lives.
    pub(crate) fn live(&mut self) {
        let uid = self.ground.uid();
        let targets = self.stage(&uid);
        Life::new(self, &uid, &targets).live();
        for target in &targets {
            self.unstage(target);
            // As kubelet does after it has unpublished; what a workload wrote there by mistake stays.
            fs::remove_dir(target).expect("nothing was written to the host");
        }
        let pod = self
            .ground
            .node
            .handler()
            .kubelet_dir()
            .join("pods")
            .join(uid);
        fs::remove_dir_all(pod).expect("the pod's directory goes");
    }

    fn stage(&self, uid: &str) -> [PathBuf; 2] {
        let Ground { node, ops, .. } = self.ground;
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
        let unstaged = holds_within(UNSTAGED, || {
            last = self.ground.ops.unstage(target);
            last.is_ok()
        });
        assert!(unstaged, "{last:?}");
    }

    /// The volumes are nobody's, and their file systems sound.
    pub(crate) fn assert_whole(&self) {
        for Volume { device, .. } in &self.volumes {
            device.wait_until_free(WAIT_TIMEOUT);
            assert_eq!(device.host_mounts(), Vec::<String>::new());
            fsck(device.fstype(), device.path());
        }
    }
}

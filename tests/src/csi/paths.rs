//! The paths and devices of a driver.

use std::fs;
use std::path::PathBuf;

use super::{Csi, DRIVER};
use crate::loopdev;

impl Csi {
    /// Returns a volume's staging path, with the name that kubelet gives it.
    pub fn staging(&self, id: &str) -> PathBuf {
        let of_the_driver = self.kubelet.join("plugins/kubernetes.io/csi").join(DRIVER);
        of_the_driver.join(id).join("globalmount")
    }

    /// Returns a volume's target path in a pod, with the name that kubelet gives it. Creates its parent, but not the
    /// path.
    pub fn target(&self, pod: &str, volume: &str) -> PathBuf {
        let volumes = self
            .kubelet
            .join("pods")
            .join(pod)
            .join("volumes/kubernetes.io~csi");
        let parent = volumes.join(volume);
        fs::create_dir_all(&parent).expect("a target path's parent, which kubelet makes");
        parent.join("mount")
    }

    /// Returns a volume's image file. The id of an inline volume is too long for its name.
    pub fn image(&self, id: &str) -> PathBuf {
        let id = if id.starts_with("csi-") {
            &id[..38]
        } else {
            id
        };
        self.data.join("images").join(format!("{id}.img"))
    }

    /// Returns a volume's loop devices. There must be at most one.
    pub fn devices(&self, id: &str) -> Vec<PathBuf> {
        let image = self.image(id);
        let attached = loopdev::on_files_below(&self.data).into_iter();
        let of_it = attached.filter(|(_, file)| *file == image);
        of_it.map(|(device, _)| device).collect()
    }

    /// Returns the only loop device of a staged volume.
    #[track_caller]
    pub fn device(&self, id: &str) -> PathBuf {
        let devices = self.devices(id);
        let [device] = &devices[..] else {
            panic!("{id} has the devices {devices:?}");
        };
        device.clone()
    }

    /// Returns a volume's record.
    pub fn record(&self, id: &str) -> PathBuf {
        self.data.join("volumes").join(format!("{id}.json"))
    }

    /// Returns the images, records and loop devices in the data directory. Without volumes there must be none.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        for directory in ["images", "volumes"] {
            let entries = fs::read_dir(self.data.join(directory))
                .into_iter()
                .flatten();
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        left.extend(
            loopdev::on_files_below(&self.data)
                .into_iter()
                .map(|(device, _)| device),
        );
        left
    }
}

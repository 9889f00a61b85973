//! Where a driver's things are.

use std::fs;
use std::path::PathBuf;

use super::{Csi, DRIVER};
use crate::loopdev;

impl Csi {
    /// A volume's staging path, as kubelet names it.
    pub fn staging(&self, id: &str) -> PathBuf {
        let of_the_driver = self.kubelet.join("plugins/kubernetes.io/csi").join(DRIVER);
        of_the_driver.join(id).join("globalmount")
    }

    /// A volume's target path in a pod, as kubelet names it; its parent is there, and it isn't.
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

    /// A volume's image.
    pub fn image(&self, id: &str) -> PathBuf {
        self.data.join("images").join(format!("{id}.img"))
    }

    /// A volume's loop devices; one or none, as long as all is well.
    pub fn devices(&self, id: &str) -> Vec<PathBuf> {
        let image = self.image(id);
        let attached = loopdev::on_files_below(&self.data).into_iter();
        let of_it = attached.filter(|(_, file)| *file == image);
        of_it.map(|(device, _)| device).collect()
    }

    /// A staged volume's loop device.
    ///
    /// # Panics
    ///
    /// When it has none, or several.
    #[track_caller]
    pub fn device(&self, id: &str) -> PathBuf {
        let devices = self.devices(id);
        let [device] = &devices[..] else {
            panic!("{id} has the devices {devices:?}");
        };
        device.clone()
    }

    /// A volume's record.
    pub fn record(&self, id: &str) -> PathBuf {
        self.data.join("volumes").join(format!("{id}.json"))
    }

    /// All that is in its data directory but what is there without a volume.
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

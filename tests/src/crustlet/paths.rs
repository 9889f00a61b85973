//! The directories and files of the agent, which are where kubelet has them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Crustlet;
use crate::csi::DRIVER;
use crate::node::digest;

impl Crustlet {
    /// Returns the path of a file of manifests.
    pub fn manifest(&self, name: &str) -> PathBuf {
        self.manifests.join(format!("{name}.yaml"))
    }

    /// Returns the agent's root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns a pod's directory.
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.root.join("pods").join(uid)
    }

    /// Returns a volume's target path in a pod. `volume` is the name of the volume's directory there.
    pub fn target(&self, uid: &str, volume: &str) -> PathBuf {
        let volumes = self.pod_dir(uid).join("volumes/kubernetes.io~csi");
        volumes.join(volume).join("mount")
    }

    /// Reads a volume's `vol_data.json` in a pod.
    #[track_caller]
    pub fn vol_data(&self, uid: &str, volume: &str) -> Value {
        let file = self.target(uid, volume).with_file_name("vol_data.json");
        let text = fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Returns the staging path of the volume with this handle.
    pub fn staging(&self, handle: &str) -> PathBuf {
        self.staged().join(digest(handle)).join("globalmount")
    }

    /// Returns the directories of pods and of staged volumes. After all pods have ended there must be none.
    pub fn leftovers(&self) -> Vec<PathBuf> {
        let directories = [self.root.join("pods"), self.staged()];
        let entries = directories.iter().filter_map(|it| fs::read_dir(it).ok());
        let entries = entries.flatten();
        entries.map(|it| it.expect("an entry").path()).collect()
    }

    fn staged(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi").join(DRIVER)
    }
}

//! Reconstruction after a restart (KEP-3756): reads from disk which volumes may be staged and published, and which
//! directories have no readable record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo;

use super::OperationError;
use super::directories::remove_volume_dir;
use super::pod_directory::read_pod_record;
use super::publish::Publication;
use super::subpath::{detach, unbind};
use crate::objects::Pod;
use crate::objects::manifest::{BLOCK_VOLUMES, is_driver_name};
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::layout::RootDirLayout;
use crate::volumes::spec::{Lifecycle, VolumeId};

/// The volumes and pods that were found on disk.
#[derive(Debug, Default)]
pub(crate) struct ReconstructedState {
    /// Published volumes with a record.
    pub(crate) published: Vec<(Publication, Lifecycle)>,
    /// Staged volumes with a record.
    pub(crate) staged: Vec<VolumeId>,
    /// Directories of volumes without a readable record.
    pub(crate) unreadable: Vec<UnreadableVolume>,
    /// Pods that have a directory.
    pub(crate) pods: Vec<ReconstructedPod>,
}

/// A pod that has a directory.
#[derive(Debug)]
pub(crate) struct ReconstructedPod {
    pub(crate) uid: String,
    /// The pod as it was when it was started. `None` if it has no readable record.
    pub(crate) recorded: Option<Pod>,
}

/// A volume's directory without a readable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadableVolume {
    /// The UID of the pod that the volume belongs to. `None` for a staged volume.
    pub(crate) pod: Option<String>,
    pub(crate) path: PathBuf,
    /// The reason why the record can't be used.
    pub(crate) reason: String,
    /// The presumed publication, if exactly one volume with a record has the same directory name. It has to be
    /// unpublished, because a driver doesn't unstage a volume that is still published.
    pub(crate) publication: Option<Publication>,
}

impl ReconstructedState {
    /// Returns the subdirectories of a directory of volumes. If it can't be read, it is added to `unreadable`.
    fn subdirectories(&mut self, directory: &Path, pod: Option<&str>) -> Vec<String> {
        subdirectories(directory).unwrap_or_else(|error| {
            self.unreadable.push(UnreadableVolume {
                pod: pod.map(str::to_owned),
                path: directory.to_owned(),
                reason: error.to_string(),
                publication: None,
            });
            Vec::new()
        })
    }
}

/// Reads the directories and records of volumes and pods.
pub(crate) fn reconstruct(layout: &RootDirLayout) -> Result<ReconstructedState, OperationError> {
    let mut state = ReconstructedState::default();
    for uid in subdirectories(&layout.pods())? {
        for directory in state.subdirectories(&layout.csi_volumes(&uid), Some(&uid)) {
            let path = layout.volume(&uid, &directory);
            let read = read_data(&path).and_then(|data| {
                // A record without a name belongs to the directory that it is in.
                if data.directory() == directory || data.directory().is_empty() {
                    Ok(data)
                } else {
                    Err(format!(
                        "the record has another specVolID, {:?}",
                        data.directory()
                    ))
                }
            });
            match read {
                Ok(data) => state.published.push((
                    Publication {
                        id: data.id(),
                        pod: uid.clone(),
                        directory,
                        mounter: data.mounter(),
                    },
                    data.lifecycle(),
                )),
                Err(reason) => state.unreadable.push(UnreadableVolume {
                    pod: Some(uid.clone()),
                    path,
                    reason,
                    publication: None,
                }),
            }
        }
        let recorded = read_pod_record(layout, &uid);
        state.pods.push(ReconstructedPod { uid, recorded });
    }
    let mut volumes = VolumesByName::new(&state);
    for driver in subdirectories(&layout.drivers())? {
        // kubelet's directory for raw block volumes, which crustlet doesn't support.
        if driver == BLOCK_VOLUMES {
            continue;
        }
        for digest in state.subdirectories(&layout.drivers().join(&driver), None) {
            let path = layout.drivers().join(&driver).join(digest);
            match read_data(&path) {
                Ok(data) if layout.staged(&data.id()) == path => {
                    // kubelet's records of staged volumes have no name.
                    if !data.directory().is_empty() {
                        volumes.add(data.directory(), data.id());
                    }
                    state.staged.push(data.id());
                }
                read => match volumes.ids().find(|id| layout.staged(id) == path) {
                    // The volume is published, too, and the record of that publication identifies it.
                    Some(id) => state.staged.push(id.clone()),
                    None => state.unreadable.push(UnreadableVolume {
                        pod: None,
                        path,
                        reason: read
                            .err()
                            .unwrap_or_else(|| "the record belongs to another volume".to_owned()),
                        publication: None,
                    }),
                },
            }
        }
    }
    for unreadable in &mut state.unreadable {
        let pod = state
            .pods
            .iter()
            .find(|pod| unreadable.pod.as_deref() == Some(&pod.uid));
        let recorded = pod.and_then(|pod| pod.recorded.as_ref());
        unreadable.publication = volumes.presumed_publication(unreadable, recorded)?;
    }
    Ok(state)
}

/// The volumes with a readable record, by the names of their directories. A directory is named after its
/// `PersistentVolume`.
#[derive(Debug)]
struct VolumesByName(BTreeMap<String, BTreeSet<VolumeId>>);

impl VolumesByName {
    fn new(state: &ReconstructedState) -> Self {
        let mut volumes = Self(BTreeMap::new());
        for (publication, lifecycle) in &state.published {
            // Another volume in another pod can have the same name as an inline volume.
            if *lifecycle == Lifecycle::Persistent {
                volumes.add(&publication.directory, publication.id.clone());
            }
        }
        volumes
    }

    fn add(&mut self, directory: &str, id: VolumeId) {
        self.0.entry(directory.to_owned()).or_default().insert(id);
    }

    fn ids(&self) -> impl Iterator<Item = &VolumeId> {
        self.0.values().flatten()
    }

    /// Returns the publication that a directory of a pod presumably belongs to: that of the volume with the directory's
    /// name, if only one volume has this name.
    fn presumed_publication(
        &self,
        unreadable: &UnreadableVolume,
        recorded: Option<&Pod>,
    ) -> Result<Option<Publication>, OperationError> {
        let name = unreadable.path.file_name().and_then(|name| name.to_str());
        let (Some(pod), Some(name)) = (&unreadable.pod, name) else {
            return Ok(None);
        };
        let volumes = recorded.and_then(|recorded| recorded.spec.volumes.as_ref());
        let mut volumes = volumes.into_iter().flatten();
        if volumes.any(|volume| volume.name == name && volume.csi.is_some()) {
            // An inline volume belongs to one pod, so a known volume with its name is another one.
            return Ok(None);
        }
        let mut ids = self.0.get(name).into_iter().flatten();
        let (Some(id), None) = (ids.next(), ids.next()) else {
            return Ok(None);
        };
        let target = mount_point(unreadable);
        let mounts = mountinfo::read_own()?;
        let is_mounted = mounts.iter().any(|mount| mount.mount_point == target);
        Ok(Some(Publication {
            id: id.clone(),
            pod: pod.clone(),
            directory: name.to_owned(),
            // If the volume isn't mounted on the host, the runtime may have mounted it.
            mounter: if is_mounted {
                Mounter::Driver
            } else {
                Mounter::Deferred
            },
        }))
    }
}

/// Returns the path at which the driver would have mounted the volume.
fn mount_point(unreadable: &UnreadableVolume) -> PathBuf {
    unreadable.path.join(if unreadable.pod.is_some() {
        "mount"
    } else {
        "globalmount"
    })
}

/// Reads a volume's record. Returns the reason if the record doesn't exist or is invalid.
fn read_data(directory: &Path) -> Result<VolumeData, String> {
    let data = VolumeData::read(directory).map_err(|error| error.to_string())?;
    let data = data.ok_or("no vol_data.json")?;
    let driver = data.id().driver;
    if is_driver_name(&driver) {
        Ok(data)
    } else {
        Err(format!("driverName: {driver:?} is not a valid driver name"))
    }
}

/// Unmounts and removes the directory of a volume without a readable record, whatever is mounted there (KEP-3756,
/// "Proposed `VolumeManager` startup", forced cleanup). The driver isn't called: unstaging needs the volume's handle,
/// and the path contains only the handle's digest.
pub(crate) fn force_cleanup(
    layout: &RootDirLayout,
    unreadable: &UnreadableVolume,
) -> Result<(), OperationError> {
    if let Some(pod) = &unreadable.pod {
        let directory = unreadable.path.file_name().unwrap_or_default();
        unbind(&layout.subpaths(pod).join(directory))?;
    }
    let mount_point = mount_point(unreadable);
    detach(&mount_point)?;
    remove_volume_dir(&unreadable.path, &mount_point)
}

/// Returns the sorted names of a directory's subdirectories. The list is empty if the directory doesn't exist.
fn subdirectories(directory: &Path) -> Result<Vec<String>, OperationError> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // crustlet creates only directories here, and only with UTF-8 names.
            if let (true, Ok(name)) = (entry.file_type()?.is_dir(), entry.file_name().into_string())
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    };
    match list() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        result => result.map_err(OperationError::io("readdir", directory)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::manifest::{self, Object};
    use crate::volumes::layout::DATA;

    fn id(handle: &str) -> VolumeId {
        VolumeId {
            driver: "csi.example".to_owned(),
            handle: handle.to_owned(),
        }
    }

    fn record(directory: &Path, data: &VolumeData) {
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(DATA), data.to_json()).unwrap();
    }

    fn persistent(handle: &str, directory: &str, deferred: bool) -> VolumeData {
        let mounter = if deferred {
            Mounter::Deferred
        } else {
            Mounter::Driver
        };
        VolumeData::new(&id(handle), directory, Lifecycle::Persistent, mounter, "n")
    }

    #[test]
    fn volumes_are_reconstructed_from_their_records() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        assert!(reconstruct(&layout).unwrap().pods.is_empty());
        record(
            &layout.staged(&id("one")),
            &persistent("one", "pv-1", false),
        );
        record(
            &layout.volume("a", "pv-1"),
            &persistent("one", "pv-1", true),
        );
        let inline = VolumeData::new(
            &id("two"),
            "scratch",
            Lifecycle::Ephemeral,
            Mounter::Runtime,
            "n",
        );
        record(&layout.volume("b", "scratch"), &inline);
        let state = reconstruct(&layout).unwrap();
        assert_eq!(state.staged, [id("one")]);
        let pods: Vec<&str> = state.pods.iter().map(|pod| pod.uid.as_str()).collect();
        assert_eq!(pods, ["a", "b"]);
        let summary = |publication: &(Publication, Lifecycle)| {
            let (publication, lifecycle) = publication;
            (
                publication.id.handle.clone(),
                publication.pod.clone(),
                publication.mounter,
                *lifecycle,
            )
        };
        let published: Vec<_> = state.published.iter().map(summary).collect();
        let expected = [
            (
                "one".to_owned(),
                "a".to_owned(),
                Mounter::Deferred,
                Lifecycle::Persistent,
            ),
            (
                "two".to_owned(),
                "b".to_owned(),
                Mounter::Runtime,
                Lifecycle::Ephemeral,
            ),
        ];
        assert_eq!(published, expected);
        assert_eq!(state.unreadable, []);
    }

    #[test]
    fn a_record_without_a_name_belongs_to_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        let nameless = r#"{"driverName":"csi.example","volumeHandle":"one"}"#;
        for directory in [layout.staged(&id("one")), layout.volume("a", "pv-1")] {
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(DATA), nameless).unwrap();
        }
        let blocks = layout.drivers().join(BLOCK_VOLUMES);
        record(
            &blocks.join("publish"),
            &persistent("two", "publish", false),
        );
        let state = reconstruct(&layout).unwrap();
        assert_eq!(state.staged, [id("one")]);
        let published = state.published.iter();
        let published: Vec<_> = published
            .map(|(publication, _)| (&publication.id, &*publication.directory))
            .collect();
        assert_eq!(published, [(&id("one"), "pv-1")]);
        assert_eq!(state.unreadable, []);
    }

    #[test]
    fn directories_without_a_valid_record_can_be_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        fs::create_dir_all(layout.target("a", "none")).unwrap();
        record(
            &layout.volume("a", "other"),
            &persistent("one", "pv-1", false),
        );
        fs::create_dir_all(layout.volume("a", "torn")).unwrap();
        fs::write(layout.volume("a", "torn").join(DATA), "{").unwrap();
        fs::create_dir_all(layout.subpaths("a").join("torn/app")).unwrap();
        fs::write(layout.subpaths("a").join("torn/app/0"), "").unwrap();
        let moved = layout.drivers().join("csi.example/moved");
        record(&moved, &persistent("one", "pv-1", false));
        let state = reconstruct(&layout).unwrap();
        let reasons: Vec<&str> = state
            .unreadable
            .iter()
            .map(|unreadable| unreadable.reason.as_str())
            .collect();
        assert_eq!(
            reasons[..2],
            [
                "no vol_data.json",
                "the record has another specVolID, \"pv-1\""
            ]
        );
        assert!(reasons[2].contains("torn/vol_data.json"), "{reasons:?}");
        assert_eq!(reasons[3..], ["the record belongs to another volume"]);
        for unreadable in &state.unreadable {
            force_cleanup(&layout, unreadable).unwrap();
            assert!(!unreadable.path.exists());
        }
        assert_eq!(reconstruct(&layout).unwrap().unreadable, []);
    }

    #[test]
    fn a_published_volume_identifies_its_staging_directory() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        record(
            &layout.volume("a", "pv-1"),
            &persistent("one", "pv-1", false),
        );
        fs::create_dir_all(layout.staging(&id("one"))).unwrap();
        let inline = VolumeData::new(
            &id("two"),
            "scratch",
            Lifecycle::Ephemeral,
            Mounter::Driver,
            "n",
        );
        record(&layout.volume("a", "scratch"), &inline);
        fs::create_dir_all(layout.staging(&id("two"))).unwrap();
        let state = reconstruct(&layout).unwrap();
        assert_eq!(state.staged, [id("one")]);
        let paths: Vec<&PathBuf> = state
            .unreadable
            .iter()
            .map(|unreadable| &unreadable.path)
            .collect();
        assert_eq!(
            paths,
            [&layout.staged(&id("two"))],
            "an inline volume isn't staged"
        );
    }

    #[test]
    fn a_directory_without_a_record_is_matched_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        for name in ["pv-1", "pv-2", "scratch", "none"] {
            fs::create_dir_all(layout.target("a", name)).unwrap();
        }
        record(
            &layout.staged(&id("one")),
            &persistent("one", "pv-1", false),
        );
        for (pod, handle) in [("b", "two"), ("c", "another")] {
            record(
                &layout.volume(pod, "pv-2"),
                &persistent(handle, "pv-2", true),
            );
        }
        let inline = VolumeData::new(
            &id("three"),
            "scratch",
            Lifecycle::Ephemeral,
            Mounter::Driver,
            "n",
        );
        record(&layout.volume("b", "scratch"), &inline);
        let state = reconstruct(&layout).unwrap();
        let presumed = |unreadable: &UnreadableVolume| unreadable.publication.clone();
        let presumed: Vec<_> = state.unreadable.iter().filter_map(presumed).collect();
        let expected = Publication {
            id: id("one"),
            pod: "a".to_owned(),
            directory: "pv-1".to_owned(),
            mounter: Mounter::Deferred,
        };
        assert_eq!((state.unreadable.len(), presumed), (4, vec![expected]));
    }

    #[test]
    fn an_inline_volume_is_not_matched_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        for pod in ["a", "b"] {
            fs::create_dir_all(layout.target(pod, "data")).unwrap();
        }
        record(
            &layout.staged(&id("one")),
            &persistent("one", "data", false),
        );
        let manifest = "{apiVersion: v1, kind: Pod, metadata: {name: web, uid: a}, spec: {containers: [{name: app}], volumes: [{name: data, csi: {driver: csi.example}}]}}";
        let Object::Pod(pod) = manifest::read(manifest).unwrap().remove(0).object else {
            panic!("{manifest}");
        };
        crate::operations::write_pod_record(&layout, &pod).unwrap();
        let state = reconstruct(&layout).unwrap();
        let presumed = state
            .unreadable
            .iter()
            .filter(|unreadable| unreadable.publication.is_some());
        let presumed: Vec<_> = presumed
            .filter_map(|volume| volume.pod.as_deref())
            .collect();
        assert_eq!((state.unreadable.len(), presumed), (2, vec!["b"]));
    }

    #[test]
    fn an_unreadable_directory_does_not_hide_others() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        fs::create_dir_all(layout.volumes("a")).unwrap();
        fs::write(layout.csi_volumes("a"), "").unwrap();
        fs::create_dir_all(layout.drivers()).unwrap();
        record(
            &layout.volume("b", "pv-1"),
            &persistent("one", "pv-1", true),
        );
        let state = reconstruct(&layout).unwrap();
        assert_eq!(state.published.len(), 1);
        let [unreadable] = &state.unreadable[..] else {
            panic!("{:?}", state.unreadable);
        };
        assert!(
            unreadable.reason.contains("ENOTDIR"),
            "{}",
            unreadable.reason
        );
        assert!(force_cleanup(&layout, unreadable).is_err());
        assert!(layout.csi_volumes("a").exists());
    }

    #[test]
    fn cleanup_keeps_unknown_files() {
        let dir = tempfile::tempdir().unwrap();
        let layout = RootDirLayout::new(dir.path());
        let target = layout.target("a", "pv-1");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("data"), "a workload's").unwrap();
        let state = reconstruct(&layout).unwrap();
        assert!(force_cleanup(&layout, &state.unreadable[0]).is_err());
        assert!(target.join("data").exists());
    }
}

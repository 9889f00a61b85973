//! Reads the disk after a restart (KEP-3756): which volumes may be staged and published by their records, and what has
//! no readable record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crust_blockfs::mountinfo;

use super::OperationError;
use super::directories::clear;
use super::pod_directory::recorded;
use super::publish::Publication;
use super::subpath::{detach, unbind};
use crate::objects::Pod;
use crate::objects::manifest::{BLOCK_VOLUMES, is_driver};
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::layout::Layout;
use crate::volumes::spec::{Lifecycle, VolumeId};

/// The volumes and pods that were found on the disk.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Published, by the records.
    pub(crate) published: Vec<(Publication, Lifecycle)>,
    /// Staged, by the records.
    pub(crate) staged: Vec<VolumeId>,
    /// Directories without a readable record.
    pub(crate) broken: Vec<Broken>,
    /// Directories of pods, whatever is in them.
    pub(crate) pods: Vec<FoundPod>,
}

/// A pod's directory.
#[derive(Debug)]
pub(crate) struct FoundPod {
    /// Its name.
    pub(crate) uid: String,
    /// The pod as it was when it began.
    pub(crate) begun: Option<Pod>,
}

/// A volume's directory that doesn't say what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The pod that it is in, by its uid; none of one that was staged.
    pub(crate) pod: Option<String>,
    /// The directory.
    pub(crate) path: PathBuf,
    /// The flaw of its record.
    pub(crate) reason: String,
    /// The publication that it seems to be, of the one volume with its directory's name. A driver doesn't unstage a
    /// volume that it wasn't asked to unpublish.
    pub(crate) publication: Option<Publication>,
}

impl Found {
    /// Returns the names in a directory of volumes. A directory that can't be read is noted, and the others are still
    /// read.
    fn names(&mut self, directory: &Path, pod: Option<&str>) -> Vec<String> {
        names(directory).unwrap_or_else(|error| {
            self.broken.push(Broken {
                pod: pod.map(str::to_owned),
                path: directory.to_owned(),
                reason: error.to_string(),
                publication: None,
            });
            Vec::new()
        })
    }
}

/// Looks at the disk, and at nothing else.
pub(crate) fn reconstruct(layout: &Layout) -> Result<Found, OperationError> {
    let mut found = Found::default();
    for uid in names(&layout.pods())? {
        for directory in found.names(&layout.csi_volumes(&uid), Some(&uid)) {
            let path = layout.volume(&uid, &directory);
            let read = data(&path).and_then(|data| {
                // Without a name it is what it stands beside.
                if data.directory() == directory || data.directory().is_empty() {
                    Ok(data)
                } else {
                    Err(format!("specVolID is {:?}", data.directory()))
                }
            });
            match read {
                Ok(data) => found.published.push((
                    Publication {
                        id: data.id(),
                        pod: uid.clone(),
                        directory,
                        mounter: data.mounter(),
                    },
                    data.lifecycle(),
                )),
                Err(reason) => found.broken.push(Broken {
                    pod: Some(uid.clone()),
                    path,
                    reason,
                    publication: None,
                }),
            }
        }
        let begun = recorded(layout, &uid);
        found.pods.push(FoundPod { uid, begun });
    }
    let mut names_of = Names::of(&found);
    for driver in names(&layout.drivers())? {
        // It isn't ours.
        if driver == BLOCK_VOLUMES {
            continue;
        }
        for digest in found.names(&layout.drivers().join(&driver), None) {
            let path = layout.drivers().join(&driver).join(digest);
            match data(&path) {
                Ok(data) if layout.staged(&data.id()) == path => {
                    // kubelet's of staged volumes have no name.
                    if !data.directory().is_empty() {
                        names_of.add(data.directory(), data.id());
                    }
                    found.staged.push(data.id());
                }
                read => match names_of.ids().find(|id| layout.staged(id) == path) {
                    // A pod that has it says which it is.
                    Some(id) => found.staged.push(id.clone()),
                    None => found.broken.push(Broken {
                        pod: None,
                        path,
                        reason: read
                            .err()
                            .unwrap_or_else(|| "it is of another volume".to_owned()),
                        publication: None,
                    }),
                },
            }
        }
    }
    for broken in &mut found.broken {
        let pod = found
            .pods
            .iter()
            .find(|it| broken.pod.as_deref() == Some(&it.uid));
        let begun = pod.and_then(|it| it.begun.as_ref());
        broken.publication = names_of.publication(broken, begun)?;
    }
    Ok(found)
}

/// The volumes by the name of their directory (a `PersistentVolume`'s), from the readable records.
#[derive(Debug)]
struct Names(BTreeMap<String, BTreeSet<VolumeId>>);

impl Names {
    fn of(found: &Found) -> Self {
        let mut names = Self(BTreeMap::new());
        for (publication, lifecycle) in &found.published {
            // An inline volume's is the pod's own, and another's in the next.
            if *lifecycle == Lifecycle::Persistent {
                names.add(&publication.directory, publication.id.clone());
            }
        }
        names
    }

    fn add(&mut self, directory: &str, id: VolumeId) {
        self.0.entry(directory.to_owned()).or_default().insert(id);
    }

    fn ids(&self) -> impl Iterator<Item = &VolumeId> {
        self.0.values().flatten()
    }

    fn publication(
        &self,
        broken: &Broken,
        begun: Option<&Pod>,
    ) -> Result<Option<Publication>, OperationError> {
        let name = broken.path.file_name().and_then(|it| it.to_str());
        let (Some(pod), Some(name)) = (&broken.pod, name) else {
            return Ok(None);
        };
        let volumes = begun.and_then(|it| it.spec.volumes.as_ref());
        let mut volumes = volumes.into_iter().flatten();
        if volumes.any(|it| it.name == name && it.csi.is_some()) {
            // An inline one, which no other pod has.
            return Ok(None);
        }
        let mut ids = self.0.get(name).into_iter().flatten();
        let (Some(id), None) = (ids.next(), ids.next()) else {
            return Ok(None);
        };
        let target = below(broken);
        let mounts = mountinfo::read_own()?;
        let is_mounted = mounts.iter().any(|it| it.mount_point == target);
        Ok(Some(Publication {
            id: id.clone(),
            pod: pod.clone(),
            directory: name.to_owned(),
            // Where nothing is mounted the runtime may have it.
            mounter: if is_mounted {
                Mounter::Driver
            } else {
                Mounter::Deferred
            },
        }))
    }
}

/// Returns the path at which a driver was to mount it.
fn below(broken: &Broken) -> PathBuf {
    broken.path.join(if broken.pod.is_some() {
        "mount"
    } else {
        "globalmount"
    })
}

fn data(directory: &Path) -> Result<VolumeData, String> {
    let data = VolumeData::read(directory).map_err(|error| error.to_string())?;
    let data = data.ok_or("it has no vol_data.json")?;
    let driver = data.id().driver;
    if is_driver(&driver) {
        Ok(data)
    } else {
        Err(format!("driverName: {driver:?} is none"))
    }
}

/// Takes away what can't be told, whoever mounted it (KEP-3756, "Proposed `VolumeManager` startup": cleaned by force).
/// No driver is asked: which one staged it is its directory's name, but nobody unstages a volume without its handle, of
/// which the path has the digest alone.
pub(crate) fn clean(layout: &Layout, broken: &Broken) -> Result<(), OperationError> {
    if let Some(pod) = &broken.pod {
        let directory = broken.path.file_name().unwrap_or_default();
        unbind(&layout.subpaths(pod).join(directory))?;
    }
    let below = below(broken);
    detach(&below)?;
    clear(&broken.path, &below)
}

/// Returns the names in a directory. Empty if there is no directory.
fn names(directory: &Path) -> Result<Vec<String>, OperationError> {
    let listed = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // Those that can't be ours.
            if let (true, Ok(name)) = (entry.file_type()?.is_dir(), entry.file_name().into_string())
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    };
    match listed() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(OperationError::io("readdir", directory)),
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
    fn what_was_staged_and_published_is_found_by_its_records() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        let found = reconstruct(&layout).unwrap();
        assert_eq!(found.staged, [id("one")]);
        let pods: Vec<&str> = found.pods.iter().map(|it| it.uid.as_str()).collect();
        assert_eq!(pods, ["a", "b"]);
        let told = |publication: &(Publication, Lifecycle)| {
            let (it, lifecycle) = publication;
            (it.id.handle.clone(), it.pod.clone(), it.mounter, *lifecycle)
        };
        let told: Vec<_> = found.published.iter().map(told).collect();
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
        assert_eq!(told, expected);
        assert_eq!(found.broken, []);
    }

    #[test]
    fn a_record_without_a_name_is_of_what_it_stands_beside() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        let found = reconstruct(&layout).unwrap();
        assert_eq!(found.staged, [id("one")]);
        let published = found.published.iter();
        let published: Vec<_> = published.map(|(it, _)| (&it.id, &*it.directory)).collect();
        assert_eq!(published, [(&id("one"), "pv-1")]);
        assert_eq!(found.broken, []);
    }

    #[test]
    fn what_does_not_say_what_it_is_is_broken_and_can_be_cleaned() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        let found = reconstruct(&layout).unwrap();
        let reasons: Vec<&str> = found.broken.iter().map(|it| it.reason.as_str()).collect();
        assert_eq!(
            reasons[..2],
            ["it has no vol_data.json", "specVolID is \"pv-1\""]
        );
        assert!(reasons[2].contains("torn/vol_data.json"), "{reasons:?}");
        assert_eq!(reasons[3..], ["it is of another volume"]);
        for broken in &found.broken {
            clean(&layout, broken).unwrap();
            assert!(!broken.path.exists());
        }
        assert_eq!(reconstruct(&layout).unwrap().broken, []);
    }

    #[test]
    fn a_pods_volume_is_taken_from_its_staging_record() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        let found = reconstruct(&layout).unwrap();
        assert_eq!(found.staged, [id("one")]);
        let paths: Vec<&PathBuf> = found.broken.iter().map(|it| &it.path).collect();
        assert_eq!(
            paths,
            [&layout.staged(&id("two"))],
            "it is staged by nobody"
        );
    }

    #[test]
    fn an_unrecorded_mount_is_matched_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        let found = reconstruct(&layout).unwrap();
        let seems = |broken: &Broken| broken.publication.clone();
        let seems: Vec<_> = found.broken.iter().filter_map(seems).collect();
        let expected = Publication {
            id: id("one"),
            pod: "a".to_owned(),
            directory: "pv-1".to_owned(),
            mounter: Mounter::Deferred,
        };
        assert_eq!((found.broken.len(), seems), (4, vec![expected]));
    }

    #[test]
    fn an_inline_volume_is_nobody_elses_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
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
        crate::operations::record(&layout, &pod).unwrap();
        let found = reconstruct(&layout).unwrap();
        let guessed = found.broken.iter().filter(|it| it.publication.is_some());
        let guessed: Vec<_> = guessed.filter_map(|it| it.pod.as_deref()).collect();
        assert_eq!((found.broken.len(), guessed), (2, vec!["b"]));
    }

    #[test]
    fn an_unlistable_directory_hides_no_other() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        fs::create_dir_all(layout.volumes("a")).unwrap();
        fs::write(layout.csi_volumes("a"), "").unwrap();
        fs::create_dir_all(layout.drivers()).unwrap();
        record(
            &layout.volume("b", "pv-1"),
            &persistent("one", "pv-1", true),
        );
        let found = reconstruct(&layout).unwrap();
        assert_eq!(found.published.len(), 1);
        let [broken] = &found.broken[..] else {
            panic!("{:?}", found.broken);
        };
        assert!(broken.reason.contains("ENOTDIR"), "{}", broken.reason);
        assert!(clean(&layout, broken).is_err());
        assert!(layout.csi_volumes("a").exists());
    }

    #[test]
    fn files_that_nobody_knows_are_left() {
        let place = tempfile::tempdir().unwrap();
        let layout = Layout::new(place.path());
        let target = layout.target("a", "pv-1");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("data"), "a workload's").unwrap();
        let found = reconstruct(&layout).unwrap();
        assert!(clean(&layout, &found.broken[0]).is_err());
        assert!(target.join("data").exists());
    }
}

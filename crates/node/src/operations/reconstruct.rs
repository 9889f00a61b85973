//! What is on the disk after a restart (KEP-3756): which volumes may be staged and published, by the records that
//! stand beside them, and what has none that can be read.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::OperationError;
use super::place::clear;
use super::publish::Publication;
use super::subpath::{detach, unbind};
use crate::objects::manifest::is_name;
use crate::volumes::actual::Mounter;
use crate::volumes::data::VolumeData;
use crate::volumes::layout::Layout;
use crate::volumes::spec::{Lifecycle, VolumeId};

/// All that may be there.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Published, by the records.
    pub(crate) published: Vec<(Publication, Lifecycle)>,
    /// Staged, by the records.
    pub(crate) staged: Vec<VolumeId>,
    /// What can't be told.
    pub(crate) broken: Vec<Broken>,
    /// Directories of pods, by their uids, whatever is in them.
    pub(crate) pods: Vec<String>,
}

/// A volume's directory that doesn't say what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The pod that it is in, by its uid; none of one that was staged.
    pub(crate) pod: Option<String>,
    /// The directory.
    pub(crate) path: PathBuf,
    /// What is wrong with it.
    pub(crate) reason: String,
}

/// Looks at the disk, and at nothing else.
pub(crate) fn reconstruct(layout: &Layout) -> Result<Found, OperationError> {
    let mut found = Found::default();
    for uid in names(&layout.pods())? {
        for directory in names(&layout.csi_volumes(&uid))? {
            let path = layout.volume(&uid, &directory);
            let read = data(&path).and_then(|data| {
                if data.directory() == directory {
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
                        mounter: if data.is_deferred() {
                            Mounter::Deferred
                        } else {
                            Mounter::Driver
                        },
                    },
                    data.lifecycle(),
                )),
                Err(reason) => found.broken.push(Broken {
                    pod: Some(uid.clone()),
                    path,
                    reason,
                }),
            }
        }
        found.pods.push(uid);
    }
    for driver in names(&layout.drivers())? {
        for digest in names(&layout.drivers().join(&driver))? {
            let path = layout.drivers().join(&driver).join(digest);
            // Raw block volumes' directory is here too, which isn't ours.
            if driver == "volumeDevices" {
                continue;
            }
            match data(&path) {
                Ok(data) if layout.staged(&data.id()) == path => found.staged.push(data.id()),
                read => found.broken.push(Broken {
                    pod: None,
                    path,
                    reason: read
                        .err()
                        .unwrap_or_else(|| "it is of another volume".to_owned()),
                }),
            }
        }
    }
    Ok(found)
}

fn data(directory: &Path) -> Result<VolumeData, String> {
    let data = VolumeData::read(directory).map_err(|error| error.to_string())?;
    let data = data.ok_or("it has no vol_data.json")?;
    let driver = data.id().driver;
    if is_name(&driver.to_ascii_lowercase()) {
        Ok(data)
    } else {
        Err(format!("driverName: {driver:?} is none"))
    }
}

/// Takes away what can't be told, whoever mounted it: no driver can be asked.
pub(crate) fn clean(layout: &Layout, broken: &Broken) -> Result<(), OperationError> {
    let below = if let Some(pod) = &broken.pod {
        let directory = broken.path.file_name().unwrap_or_default();
        unbind(&layout.subpaths(pod).join(directory))?;
        broken.path.join("mount")
    } else {
        broken.path.join("globalmount")
    };
    detach(&below)?;
    clear(&broken.path, &below)
}

/// What a directory has; nothing where there is none.
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
        VolumeData::new(&id(handle), directory, Lifecycle::Persistent, deferred, "n")
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
        let inline = VolumeData::new(&id("two"), "scratch", Lifecycle::Ephemeral, false, "n");
        record(&layout.volume("b", "scratch"), &inline);
        let found = reconstruct(&layout).unwrap();
        assert_eq!(found.staged, [id("one")]);
        assert_eq!(found.pods, ["a", "b"]);
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
                Mounter::Driver,
                Lifecycle::Ephemeral,
            ),
        ];
        assert_eq!(told, expected);
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

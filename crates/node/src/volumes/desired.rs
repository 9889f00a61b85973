//! What is wanted (KEP-3756, "Introduction": `DesiredStateOfWorld`): the volumes of the pods that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::spec::{MountSpec, Resolved, Unresolved, VolumeId, resolve};
use crate::objects::{Objects, Pod};

/// Pods that have a volume, by their uids.
pub(crate) type Holders = BTreeMap<VolumeId, BTreeSet<String>>;

/// A volume that pods want.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DesiredVolume {
    /// By the pods' uids.
    pub(crate) mounts: BTreeMap<String, MountSpec>,
}

/// Why a pod's volume isn't wanted, though the pod is.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It can't be told what the volume is.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// KEP-2485, "Mount Enforcement".
    #[error(
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod: {0}"
    )]
    Exclusive(String),
    /// The same volume twice in a pod, by different words.
    #[error(
        "{0} is there twice, and only one of the two is deferred; hint: deferFSMount in both or none"
    )]
    Disagree(String),
}

/// Of a pod: what keeps which of its volumes from being wanted.
pub(crate) type Problems = BTreeMap<String, Problem>;

/// All that is wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Desired {
    /// Volumes that pods want.
    pub(crate) volumes: BTreeMap<VolumeId, DesiredVolume>,
    /// By the pods' uids.
    pub(crate) problems: BTreeMap<String, Problems>,
}

impl Desired {
    /// What pods want: those that are to run, or haven't ended yet. Of several that a volume can't have at a time
    /// it is the one that has it (`holders`), else the first by its name.
    pub(crate) fn of(objects: &Objects, pods: &[Arc<Pod>], holders: &Holders) -> Self {
        let mut desired = Self::default();
        let mut pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        // By the uids of those who have them, or are first to.
        let mut exclusive: BTreeMap<VolumeId, (&str, String)> = BTreeMap::new();
        for (id, holders) in holders {
            if let Some(uid) = holders.first() {
                let pod = pods.iter().find(|pod| pod.uid == *uid);
                let name = pod.map_or_else(|| format!("uid {uid}"), |pod| pod.name.to_string());
                exclusive.insert(id.clone(), (uid, name));
            }
        }
        for pod in pods {
            for volume in pod.spec.volumes.iter().flatten() {
                let wanted = match resolve(objects, pod, volume) {
                    Ok(Resolved::Csi(mount)) if mount.volume.is_exclusive() => {
                        let first = || (pod.uid.as_str(), pod.name.to_string());
                        let id = mount.volume.id.clone();
                        let (holder, name) = exclusive.entry(id).or_insert_with(first);
                        if *holder == pod.uid {
                            desired.want(&pod.uid, *mount)
                        } else {
                            Err(Problem::Exclusive(name.clone()))
                        }
                    }
                    Ok(Resolved::Csi(mount)) => desired.want(&pod.uid, *mount),
                    Ok(Resolved::EmptyDir | Resolved::HostPath(_)) => Ok(()),
                    Err(unresolved) => Err(unresolved.into()),
                };
                if let Err(problem) = wanted {
                    let problems = desired.problems.entry(pod.uid.clone()).or_default();
                    problems.insert(volume.name.clone(), problem);
                }
            }
        }
        desired
    }

    fn want(&mut self, uid: &str, mount: MountSpec) -> Result<(), Problem> {
        let volume = self.volumes.entry(mount.volume.id.clone()).or_default();
        match volume.mounts.get_mut(uid) {
            Some(there) if there.deferred != mount.deferred => {
                return Err(Problem::Disagree(mount.volume.id.to_string()));
            }
            // One mount for both; who may write writes.
            Some(there) => {
                there.read_only &= mount.read_only;
                there.has_subpath |= mount.has_subpath;
            }
            None => drop(volume.mounts.insert(uid.to_owned(), mount)),
        }
        Ok(())
    }

    /// Those of a pod.
    pub(crate) fn of_pod<'d>(
        &'d self,
        uid: &'d str,
    ) -> impl Iterator<Item = (&'d VolumeId, &'d MountSpec)> {
        let volumes = self.volumes.iter();
        volumes.filter_map(move |(id, volume)| Some((id, volume.mounts.get(uid)?)))
    }
}

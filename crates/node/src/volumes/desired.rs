//! What is wanted (KEP-3756, "Introduction": `DesiredStateOfWorld`): the volumes of the pods that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::spec::{MountSpec, Resolved, Unresolved, VolumeId, resolve};
use crate::objects::{Name, Objects, Pod};

/// A volume that pods want.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredVolume {
    /// By the pods' uids.
    pub mounts: BTreeMap<String, MountSpec>,
}

/// Why a pod's volume isn't wanted, though the pod is.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Problem {
    /// It can't be told what the volume is.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// KEP-2485, "Mount Enforcement".
    #[error(
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod: {0}"
    )]
    Exclusive(Name),
    /// The same volume twice in a pod, by different words.
    #[error(
        "{0:?} is the same volume, and only one of the two is deferred; hint: deferFSMount in both or none"
    )]
    Disagree(String),
}

/// Of a pod: what keeps which of its volumes from being wanted.
pub type Problems = BTreeMap<String, Problem>;

/// All that is wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Desired {
    /// Volumes that pods want.
    pub volumes: BTreeMap<VolumeId, DesiredVolume>,
    /// By the pods' uids.
    pub problems: BTreeMap<String, Problems>,
}

impl Desired {
    /// What pods want: those that are to run, or haven't ended yet. Of two that a volume can't have at a time the
    /// one that has it (`holders`), else the older one by its name, is first.
    #[must_use]
    pub fn of(
        objects: &Objects,
        pods: &[Arc<Pod>],
        holders: &BTreeSet<(VolumeId, String)>,
    ) -> Self {
        let mut desired = Self::default();
        let mut waiting = Vec::new();
        for pod in pods {
            let uid = pod.uid();
            for volume in pod.spec().volumes.iter().flatten() {
                match resolve(objects, pod, volume) {
                    Ok(Resolved::Csi(mount)) => {
                        let key = (mount.volume.id.clone(), uid.clone());
                        let is_holder = holders.contains(&key);
                        waiting.push((
                            !is_holder,
                            pod.name(),
                            uid.clone(),
                            volume.name.clone(),
                            *mount,
                        ));
                    }
                    Ok(Resolved::EmptyDir | Resolved::HostPath(_)) => {}
                    Err(unresolved) => desired.refuse(&uid, &volume.name, unresolved.into()),
                }
            }
        }
        waiting.sort_by(|one, other| (one.0, &one.1, &one.3).cmp(&(other.0, &other.1, &other.3)));
        let mut exclusive: BTreeMap<VolumeId, (String, Name)> = BTreeMap::new();
        for (_, name, uid, volume, mount) in waiting {
            let id = mount.volume.id.clone();
            let is_exclusive = mount
                .volume
                .access_modes
                .iter()
                .any(|mode| mode == "ReadWriteOncePod");
            if is_exclusive {
                let holder = exclusive
                    .entry(id.clone())
                    .or_insert_with(|| (uid.clone(), name.clone()));
                if holder.0 != uid {
                    let other = holder.1.clone();
                    desired.refuse(&uid, &volume, Problem::Exclusive(other));
                    continue;
                }
            }
            let wanted = desired.volumes.entry(id).or_insert_with(|| DesiredVolume {
                mounts: BTreeMap::new(),
            });
            match wanted.mounts.get_mut(&uid) {
                Some(there) if there.deferred != mount.deferred => {
                    desired.refuse(&uid, &volume, Problem::Disagree(volume.clone()));
                }
                // One mount for both; who may write writes.
                Some(there) => {
                    there.read_only &= mount.read_only;
                    there.has_subpath |= mount.has_subpath;
                }
                None => drop(wanted.mounts.insert(uid, mount)),
            }
        }
        desired
    }

    fn refuse(&mut self, uid: &str, volume: &str, problem: Problem) {
        let problems = self.problems.entry(uid.to_owned()).or_default();
        problems.insert(volume.to_owned(), problem);
    }

    /// Those of a pod.
    pub fn of_pod<'d>(
        &'d self,
        uid: &'d str,
    ) -> impl Iterator<Item = (&'d VolumeId, &'d MountSpec)> {
        let volumes = self.volumes.iter();
        volumes.filter_map(move |(id, volume)| Some((id, volume.mounts.get(uid)?)))
    }
}

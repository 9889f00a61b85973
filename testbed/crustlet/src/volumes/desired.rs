//! The desired volumes, which are those of the pods (KEP-3756, "Introduction": `DesiredStateOfWorld`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claim_ref::is_deleted;
use super::spec::{MountSpec, Resolved, Unresolved, VolumeId, resolve};
use crate::objects::{Name, Objects, Pod};

/// Pods that have a volume, by their uids.
pub(crate) type Holders = BTreeMap<VolumeId, BTreeSet<String>>;

/// A volume that pods want.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DesiredVolume {
    /// The mounts by the pods' UIDs.
    pub(crate) mounts: BTreeMap<String, MountSpec>,
}

/// The reason for which a volume of a desired pod isn't desired.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It can't be told what the volume is.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// The claim is being deleted, and a new pod would keep it (kubelet's message).
    #[error("can't start pod because PVC {0} is being deleted")]
    Deleted(Name),
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
    /// Two `PersistentVolume`s of one storage: it is published once for a pod, and in one place.
    #[error(
        "persistentvolumes {first} and {second} are the same storage, {id}, which a pod can have once; hint: one claim for both mounts"
    )]
    Twins {
        /// The name of the one that is published.
        first: String,
        /// The other's.
        second: String,
        /// The volume that both are.
        id: String,
    },
    /// Two volumes that would have one directory.
    #[error(
        "{id} would be where another volume of the pod's is, in {directory:?}; hint: a pod's volumes need names of their own, and other ones than its PersistentVolumes'"
    )]
    Place {
        /// The volume without a place.
        id: String,
        /// The directory's name.
        directory: String,
    },
}

/// The problems of a pod's volumes, by the names of the volumes in the pod.
pub(crate) type Problems = BTreeMap<String, Problem>;

/// The desired volumes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Desired {
    /// Volumes that pods want.
    pub(crate) volumes: BTreeMap<VolumeId, DesiredVolume>,
    /// The problems by the pods' UIDs.
    pub(crate) problems: BTreeMap<String, Problems>,
}

impl Desired {
    /// Returns the volumes of pods that are to run or haven't ended yet. If a volume can't have several pods at a time,
    /// the one that has it (`holders`) keeps it, else the first by its name gets it. A pod that wanted a volume
    /// `before` keeps it when its claim is deleted.
    pub(crate) fn of(
        objects: &Objects,
        pods: &[Arc<Pod>],
        holders: &Holders,
        before: &Self,
    ) -> Self {
        let mut desired = Self::default();
        let mut pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        let mut all = Vec::new();
        for pod in &pods {
            for volume in pod.spec.volumes.iter().flatten() {
                match resolve(objects, pod, volume) {
                    Ok(Resolved::Csi(mount)) => all.push((*pod, &volume.name, mount)),
                    Ok(Resolved::EmptyDir | Resolved::HostPath(_)) => {}
                    Err(unresolved) => desired.lacks(pod, &volume.name, unresolved.into()),
                }
            }
        }
        // The storage is, whichever of its PersistentVolumes says so.
        let exclusive = all.iter().filter(|(_, _, it)| it.volume.is_exclusive());
        let exclusive: BTreeSet<VolumeId> =
            exclusive.map(|(_, _, it)| it.volume.id.clone()).collect();
        let mut holding = holders.clone();
        for (pod, name, mount) in all {
            let id = &mount.volume.id;
            let holding = holding.entry(id.clone()).or_default();
            let has_it = holding.contains(&pod.uid);
            let wanted = before.volumes.get(id);
            let is_new = !has_it && wanted.is_none_or(|it| !it.mounts.contains_key(&pod.uid));
            let claim = mount.volume.claim.as_ref();
            let claim =
                claim.filter(|claim| objects.claims.get(*claim).is_some_and(|it| is_deleted(it)));
            let is_taken = exclusive.contains(id) && !has_it;
            let wanted = match (claim, holding.first().filter(|_| is_taken)) {
                (Some(claim), _) if is_new => Err(Problem::Deleted(claim.clone())),
                (_, Some(holder)) => Err(Problem::Exclusive(named(&pods, holder))),
                _ => desired.want(&pod.uid, *mount).inspect(|()| {
                    holding.insert(pod.uid.clone());
                }),
            };
            if let Err(problem) = wanted {
                desired.lacks(pod, name, problem);
            }
        }
        desired
    }

    fn lacks(&mut self, pod: &Pod, volume: &str, problem: Problem) {
        let problems = self.problems.entry(pod.uid.clone()).or_default();
        problems.insert(volume.to_owned(), problem);
    }

    fn want(&mut self, uid: &str, mount: MountSpec) -> Result<(), Problem> {
        let (id, directory) = (&mount.volume.id, &mount.volume.directory);
        let is_there =
            |(other, it): (&VolumeId, &MountSpec)| other != id && it.volume.directory == *directory;
        if self.of_pod(uid).any(is_there) {
            let (id, directory) = (id.to_string(), directory.clone());
            return Err(Problem::Place { id, directory });
        }
        let volume = self.volumes.entry(mount.volume.id.clone()).or_default();
        match volume.mounts.get_mut(uid) {
            Some(there) if there.deferred != mount.deferred => {
                return Err(Problem::Disagree(mount.volume.id.to_string()));
            }
            Some(there) if there.volume.directory != mount.volume.directory => {
                return Err(Problem::Twins {
                    first: there.volume.directory.clone(),
                    second: mount.volume.directory,
                    id: mount.volume.id.to_string(),
                });
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

/// A pod, for people.
fn named(pods: &[&Pod], uid: &str) -> String {
    let pod = pods.iter().find(|pod| pod.uid == uid);
    pod.map_or_else(|| format!("uid {uid}"), |pod| pod.name.to_string())
}

//! The desired state of volumes, which follows from the pods (KEP-3756, "Introduction": `DesiredStateOfWorld`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::claim_ref::is_deleted;
use super::spec::{MountSpec, ResolveError, ResolvedVolume, VolumeId, resolve};
use crate::objects::{Name, Objects, Pod};

/// The UIDs of the pods that each volume is, or may be, published for.
pub(crate) type VolumeHolders = BTreeMap<VolumeId, BTreeSet<String>>;

/// A volume that pods need.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DesiredVolume {
    /// The mounts, by the pods' UIDs.
    pub(crate) mounts: BTreeMap<String, MountSpec>,
}

/// The reason why a volume of a pod isn't part of the desired state.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub(crate) enum VolumeProblem {
    /// The volume can't be resolved.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The claim is being deleted, and a new pod would prevent that (kubelet's message).
    #[error("can't start pod because PVC {0} is being deleted")]
    ClaimDeleted(Name),
    /// KEP-2485, "Mount Enforcement".
    #[error(
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod: {0}"
    )]
    InUse(String),
    /// The pod has the volume twice, and only one of the two is deferred.
    #[error(
        "{0} is used by two volumes of the pod, and only one of them is deferred; hint: set deferFSMount in both or in neither"
    )]
    DeferralConflict(String),
    /// The pod has two `PersistentVolume`s with the same storage, which is published once per pod.
    #[error(
        "persistentvolumes {first} and {second} are the same storage, {id}, which can be published once per pod; hint: use one claim for both mounts"
    )]
    SameStorage {
        /// The name of the `PersistentVolume` that is published.
        first: String,
        /// The name of the `PersistentVolume` that isn't published.
        second: String,
        id: String,
    },
    /// Two volumes of the pod have the same directory.
    #[error(
        "volume {id} would use the directory {directory:?}, which another volume of the pod uses; hint: give the pod's volumes unique names that differ from those of its PersistentVolumes"
    )]
    DirectoryConflict {
        /// The volume that isn't published.
        id: String,
        directory: String,
    },
}

/// The problems of a pod's volumes, by the volumes' names in the pod.
pub(crate) type VolumeProblems = BTreeMap<String, VolumeProblem>;

/// The desired state of all volumes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DesiredState {
    pub(crate) volumes: BTreeMap<VolumeId, DesiredVolume>,
    /// The problems, by the pods' UIDs.
    pub(crate) problems: BTreeMap<String, VolumeProblems>,
}

impl DesiredState {
    /// Returns the volumes of pods that are to run or haven't ended yet. A volume that only one pod may use stays with
    /// its holder; without a holder, the first pod by name gets it. A pod that has a volume in the `previous` state
    /// keeps the volume when the claim is deleted.
    pub(crate) fn new(
        objects: &Objects,
        pods: &[Arc<Pod>],
        holders: &VolumeHolders,
        previous: &Self,
    ) -> Self {
        let mut desired = Self::default();
        let mut pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        let mut all = Vec::new();
        for pod in &pods {
            for volume in pod.spec.volumes.iter().flatten() {
                match resolve(objects, pod, volume) {
                    Ok(ResolvedVolume::Csi(mount)) => all.push((*pod, &volume.name, mount)),
                    Ok(ResolvedVolume::EmptyDir | ResolvedVolume::HostPath(_)) => {}
                    Err(unresolved) => desired.add_problem(pod, &volume.name, unresolved.into()),
                }
            }
        }
        // Storage is exclusive if at least one of its PersistentVolumes is ReadWriteOncePod.
        let exclusive = all
            .iter()
            .filter(|(_, _, mount)| mount.volume.is_exclusive());
        let exclusive: BTreeSet<VolumeId> = exclusive
            .map(|(_, _, mount)| mount.volume.id.clone())
            .collect();
        let mut holders = holders.clone();
        for (pod, name, mount) in all {
            let id = &mount.volume.id;
            let holders = holders.entry(id.clone()).or_default();
            let is_holder = holders.contains(&pod.uid);
            let previous_volume = previous.volumes.get(id);
            let had_mount =
                previous_volume.is_some_and(|volume| volume.mounts.contains_key(&pod.uid));
            let is_new = !is_holder && !had_mount;
            let claim = mount.volume.claim.as_ref();
            let claim = claim.filter(|claim| {
                objects
                    .claims
                    .get(*claim)
                    .is_some_and(|claim| is_deleted(claim))
            });
            let is_taken = exclusive.contains(id) && !is_holder;
            let result = match (claim, holders.first().filter(|_| is_taken)) {
                (Some(claim), _) if is_new => Err(VolumeProblem::ClaimDeleted(claim.clone())),
                (_, Some(holder)) => Err(VolumeProblem::InUse(pod_name(&pods, holder))),
                _ => desired.add_mount(&pod.uid, *mount).inspect(|()| {
                    holders.insert(pod.uid.clone());
                }),
            };
            if let Err(problem) = result {
                desired.add_problem(pod, name, problem);
            }
        }
        desired
    }

    fn add_problem(&mut self, pod: &Pod, volume: &str, problem: VolumeProblem) {
        let problems = self.problems.entry(pod.uid.clone()).or_default();
        problems.insert(volume.to_owned(), problem);
    }

    fn add_mount(&mut self, uid: &str, mount: MountSpec) -> Result<(), VolumeProblem> {
        let (id, directory) = (&mount.volume.id, &mount.volume.directory);
        let is_conflict = |(other, mount): (&VolumeId, &MountSpec)| {
            other != id && mount.volume.directory == *directory
        };
        if self.pod_volumes(uid).any(is_conflict) {
            let (id, directory) = (id.to_string(), directory.clone());
            return Err(VolumeProblem::DirectoryConflict { id, directory });
        }
        let volume = self.volumes.entry(mount.volume.id.clone()).or_default();
        match volume.mounts.get_mut(uid) {
            Some(existing) if existing.deferred != mount.deferred => {
                return Err(VolumeProblem::DeferralConflict(mount.volume.id.to_string()));
            }
            Some(existing) if existing.volume.directory != mount.volume.directory => {
                return Err(VolumeProblem::SameStorage {
                    first: existing.volume.directory.clone(),
                    second: mount.volume.directory,
                    id: mount.volume.id.to_string(),
                });
            }
            // One mount serves both volumes. It is writable if one of the two is.
            Some(existing) => {
                existing.read_only &= mount.read_only;
                existing.has_subpath |= mount.has_subpath;
            }
            None => drop(volume.mounts.insert(uid.to_owned(), mount)),
        }
        Ok(())
    }

    pub(crate) fn pod_volumes<'d>(
        &'d self,
        uid: &'d str,
    ) -> impl Iterator<Item = (&'d VolumeId, &'d MountSpec)> {
        let volumes = self.volumes.iter();
        volumes.filter_map(move |(id, volume)| Some((id, volume.mounts.get(uid)?)))
    }
}

/// Returns the name of a pod, or its UID if the pod isn't known any more.
fn pod_name(pods: &[&Pod], uid: &str) -> String {
    let pod = pods.iter().find(|pod| pod.uid == uid);
    pod.map_or_else(|| format!("uid {uid}"), |pod| pod.name.to_string())
}

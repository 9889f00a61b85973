//! The deferred volumes of a pod. Until the pod has started, its manifest decides. Afterwards, a volume is deferred if
//! it was published as deferred (KEP-2857, "`DeferFSMount` field in Pod Spec").

use std::collections::{BTreeMap, BTreeSet};

use super::pods::Pods;
use super::volumes::Volumes;
use crate::objects::{Name, Objects, Pod};
use crate::volumes::actual::Mounter;
use crate::volumes::spec::{ResolvedVolume, resolve};

/// Returns the names of a pod's deferred volumes.
pub(super) fn deferred_volumes(
    objects: &Objects,
    volumes: &Volumes,
    pod: &Pod,
) -> BTreeSet<String> {
    let all = pod.spec.volumes.iter().flatten();
    let is_deferred = |name: &str, resolved: Option<ResolvedVolume>| {
        let mount = match resolved {
            Some(ResolvedVolume::Csi(mount)) => volumes.actual().mount(&mount.volume.id, &pod.uid),
            _ => None,
        };
        mount.map_or_else(
            || pod.deferred.contains(name),
            |mount| mount.mounter == Mounter::Deferred,
        )
    };
    all.filter(|volume| is_deferred(&volume.name, resolve(objects, pod, volume).ok()))
        .map(|volume| volume.name.clone())
        .collect()
}

/// Returns the deferred volumes of each pod that has a manifest and has started.
pub(super) fn deferred_volumes_of_started_pods(
    objects: &Objects,
    pods: &Pods,
    volumes: &Volumes,
) -> BTreeMap<Name, BTreeSet<String>> {
    let known = pods.known().values();
    let known = known.filter(|known| known.has_manifest && known.has_started());
    let pods = known.filter_map(|known| known.pod.as_deref());
    pods.map(|pod| (pod.name.clone(), deferred_volumes(objects, volumes, pod)))
        .collect()
}

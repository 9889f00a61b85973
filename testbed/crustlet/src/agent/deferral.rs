//! The deferred volumes of a pod: those that its manifest names, and once it has begun those that are mounted so
//! (KEP-2857, "`DeferFSMount` field in Pod Spec").

use std::collections::{BTreeMap, BTreeSet};

use super::pods::Pods;
use super::volumes::Volumes;
use crate::objects::{Name, Objects, Pod};
use crate::volumes::actual::Mounter;
use crate::volumes::spec::{ResolvedVolume, resolve};

/// Those of a pod, by their names in it.
pub(super) fn of(objects: &Objects, volumes: &Volumes, pod: &Pod) -> BTreeSet<String> {
    let all = pod.spec.volumes.iter().flatten();
    let is_deferred = |name: &str, resolved: Option<ResolvedVolume>| {
        let there = match resolved {
            Some(ResolvedVolume::Csi(mount)) => volumes.actual().mount(&mount.volume.id, &pod.uid),
            _ => None,
        };
        there.map_or_else(
            || pod.deferred.contains(name),
            |it| it.mounter == Mounter::Deferred,
        )
    };
    all.filter(|volume| is_deferred(&volume.name, resolve(objects, pod, volume).ok()))
        .map(|volume| volume.name.clone())
        .collect()
}

/// The same of all pods that were begun.
pub(super) fn of_begun(
    objects: &Objects,
    pods: &Pods,
    volumes: &Volumes,
) -> BTreeMap<Name, BTreeSet<String>> {
    let known = pods.known().values();
    let known = known.filter(|it| it.is_written && it.has_begun());
    let pods = known.filter_map(|it| it.pod.as_deref());
    pods.map(|pod| (pod.name.clone(), of(objects, volumes, pod)))
        .collect()
}

//! Tests of the desired state and the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::actual::{ActualMount, ActualState, Certainty, Mounter};
use super::desired::{DesiredState, VolumeHolders, VolumeProblem};
use super::plan::{AllowedSteps, VolumeStep, plan};
use super::spec::{Lifecycle, ResolveError, VolumeId};
use crate::objects::manifest::read;
use crate::objects::{Name, Objects, Pod};

const COMMON: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv-1}
spec:
  claimRef: {name: data, namespace: default, uid: data-uid}
  accessModes: [MODE]
  capacity: {storage: 1Gi}
  mountOptions: [noatime]
  csi: {driver: csi.example, volumeHandle: handle-1, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, uid: data-uid, annotations: {pv.kubernetes.io/bind-completed: 'yes'}}
spec: {volumeName: pv-1}
";

fn pod(name: &str, deferred: bool) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, uid: {name}-uid}}
spec:
  securityContext: {{fsGroup: 100, fsGroupChangePolicy: OnRootMismatch}}
  containers:
  - name: app
    image: app
    volumeMounts: [{{name: v, mountPath: /data, subPath: a}}]
  volumes:
  - name: v
    persistentVolumeClaim: {{claimName: data, deferFSMount: {deferred}}}
"
    )
}

fn objects(text: &str) -> Objects {
    let mut objects = Objects::default();
    for manifest in read(text).expect("manifests") {
        objects.insert(manifest);
    }
    objects
}

fn with_mode(mode: &str, pods: &[(&str, bool)]) -> Objects {
    let mut text = COMMON.replace("MODE", mode);
    for (name, deferred) in pods {
        text += &pod(name, *deferred);
    }
    objects(&text)
}

fn desired_state(objects: &Objects) -> DesiredState {
    desired_with(objects, &VolumeHolders::new())
}

fn desired_with(objects: &Objects, holders: &VolumeHolders) -> DesiredState {
    let pods: Vec<Arc<Pod>> = objects.pods.values().cloned().collect();
    DesiredState::new(objects, &pods, holders, &DesiredState::default())
}

fn id() -> VolumeId {
    VolumeId {
        driver: "csi.example".to_owned(),
        handle: "handle-1".to_owned(),
    }
}

fn actual(staged: Option<Certainty>, mounts: &[(&str, Certainty)]) -> ActualState {
    let mut actual = ActualState::default();
    let entry = actual.entry(&id(), Lifecycle::Persistent);
    entry.staged = staged;
    entry.mounts = mounts
        .iter()
        .map(|(pod, certainty)| {
            let mount = ActualMount {
                certainty: *certainty,
                directory: "pv-1".to_owned(),
                mounter: Mounter::Driver,
                runtime_mount: None,
            };
            ((*pod).to_owned(), mount)
        })
        .collect();
    actual
}

fn next_steps(
    desired: &DesiredState,
    actual: &ActualState,
    may_unmount: bool,
    running: &[&str],
) -> Vec<VolumeStep> {
    let running = running.iter().map(|&uid| uid.to_owned()).collect();
    let allowed = AllowedSteps {
        may_unmount,
        running: &running,
        started: &running,
    };
    let steps = plan(desired, actual, allowed);
    assert!(steps.len() <= 1, "{steps:?}");
    steps
        .into_iter()
        .next()
        .map_or(Vec::new(), |(_, steps)| steps)
}

fn publish(pod: &str) -> VolumeStep {
    VolumeStep::Publish(pod.to_owned())
}

fn unpublish(pod: &str) -> VolumeStep {
    VolumeStep::Unpublish(pod.to_owned())
}

#[test]
fn a_pods_volume_is_the_volume_of_its_claim() {
    let desired = desired_state(&with_mode("ReadWriteOnce", &[("one", true)]));
    let (found, mount) = desired.pod_volumes("one-uid").next().expect("a volume");
    assert_eq!(*found, id());
    assert_eq!(found.to_string(), "kubernetes.io/csi/csi.example^handle-1");
    assert!(mount.deferred && mount.has_subpath && !mount.read_only);
    assert_eq!(
        (mount.fs_group, mount.change_policy.as_deref()),
        (Some(100), Some("OnRootMismatch"))
    );
    assert_eq!(mount.volume.capacity, Some(1 << 30));
    assert_eq!(mount.volume.mount_options, ["noatime"]);
    assert_eq!(desired.problems, BTreeMap::new());
}

#[test]
fn a_missing_object_is_named() {
    let mut objects = with_mode("ReadWriteOnce", &[("one", false)]);
    objects.volumes.clear();
    let problem = |objects: &Objects| desired_state(objects).problems["one-uid"]["v"].clone();
    let claim = Name::new("default", "data");
    let missing = ResolveError::VolumeNotFound {
        claim: claim.clone(),
        volume: "pv-1".to_owned(),
    };
    assert_eq!(problem(&objects), VolumeProblem::Unresolved(missing));
    objects.claims.clear();
    assert_eq!(
        problem(&objects),
        VolumeProblem::Unresolved(ResolveError::ClaimNotFound(claim))
    );
    assert_eq!(desired_state(&objects).volumes, BTreeMap::new());
}

/// Mounting follows the same rules as binding.
#[test]
fn a_claim_and_its_volume_must_refer_to_each_other() {
    let text = COMMON.replace("MODE", "ReadWriteOnce") + &pod("one", false);
    let problem = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let desired = desired_state(&objects(&text.replace(from, to)));
        desired.problems["one-uid"]["v"].clone()
    };
    let claim = Name::new("default", "data");
    let unbound = VolumeProblem::Unresolved(ResolveError::ClaimNotBound(claim.clone()));
    for (from, to) in [
        (", uid: data-uid}\n  access", "}\n  access"),
        (
            "claimRef: {name: data, namespace: default, uid: data-uid}",
            "claimRef:",
        ),
        ("pv.kubernetes.io/bind-completed", "other"),
        ("{volumeName: pv-1}", "{}"),
    ] {
        assert_eq!(problem(from, to), unbound, "{from}");
    }
    for (from, to, other) in [
        (
            "uid: data-uid}\n  access",
            "uid: another}\n  access",
            "data",
        ),
        ("claimRef: {name: data", "claimRef: {name: other", "other"),
        // A released volume may be deleted at any time.
        (
            "---\napiVersion: v1\nkind: PersistentVolumeClaim",
            "status: {phase: Released}\n---\napiVersion: v1\nkind: PersistentVolumeClaim",
            "data",
        ),
    ] {
        let other = Name::new("default", other);
        let bound_to_other = ResolveError::BoundToOther(claim.clone(), "pv-1".to_owned(), other);
        assert_eq!(
            problem(from, to),
            VolumeProblem::Unresolved(bound_to_other),
            "{to}"
        );
    }
}

/// kubelet has the same rule.
#[test]
fn new_pods_cannot_use_a_claim_that_is_being_deleted() {
    let text = COMMON.replace("MODE", "ReadWriteOnce") + &pod("one", false) + &pod("two", false);
    let previous = desired_state(&objects(&text.replace(&pod("two", false), "")));
    let deleted = objects(&text.replace(
        "uid: data-uid, ann",
        "uid: data-uid, deletionTimestamp: '2026-01-01T00:00:00Z', ann",
    ));
    let pods: Vec<Arc<Pod>> = deleted.pods.values().cloned().collect();
    let refused_pods = |holders: &VolumeHolders, previous: &DesiredState| {
        let desired = DesiredState::new(&deleted, &pods, holders, previous);
        desired.problems.into_keys().collect::<Vec<_>>()
    };
    let (empty, no_holders) = (DesiredState::default(), VolumeHolders::new());
    assert_eq!(refused_pods(&no_holders, &empty), ["one-uid", "two-uid"]);
    assert_eq!(refused_pods(&no_holders, &previous), ["two-uid"]);
    let holders = VolumeHolders::from([(id(), BTreeSet::from(["two-uid".to_owned()]))]);
    assert_eq!(refused_pods(&holders, &empty), ["one-uid"]);
    let desired = desired_state(&deleted);
    let message = desired.problems["one-uid"]["v"].to_string();
    assert_eq!(
        message,
        "can't start pod because PVC default/data is being deleted"
    );
}

/// Two `PersistentVolume`s have the same storage, and one of them is `ReadWriteOncePod`.
#[test]
fn storage_is_exclusive_if_one_of_its_volumes_is() {
    let shared = COMMON.replace("MODE", "ReadWriteOnce");
    let exclusive = COMMON
        .replace("MODE", "ReadWriteOncePod")
        .replace("pv-1", "pv-2")
        .replace("name: data", "name: exclusive")
        .replace("data-uid", "exclusive-uid");
    let exclusive_pod = pod("two", false).replace("claimName: data", "claimName: exclusive");
    for pods in [
        [pod("one", false), exclusive_pod.clone()],
        [exclusive_pod.replace("two", "a-first"), pod("one", false)],
    ] {
        let objects = objects(&format!("{shared}---{exclusive}{}{}", pods[0], pods[1]));
        let desired = desired_state(&objects);
        assert_eq!(desired.problems.len(), 1, "{:?}", desired.problems);
        let second = objects.pods.values().next_back().unwrap();
        let problem = &desired.problems[&second.uid]["v"];
        assert!(matches!(problem, VolumeProblem::InUse(_)), "{problem:?}");
    }
    // The current holders keep the volume.
    let three = format!(
        "{shared}---{exclusive}{}{}{exclusive_pod}",
        pod("one", false),
        pod("three", false)
    );
    let both = BTreeSet::from(["one-uid".to_owned(), "three-uid".to_owned()]);
    let desired = desired_with(&objects(&three), &VolumeHolders::from([(id(), both)]));
    assert_eq!(desired.problems.keys().collect::<Vec<_>>(), ["two-uid"]);
}

/// A pod may use one claim twice, but neither two `PersistentVolume`s with the same storage nor two volumes with the
/// same directory.
#[test]
fn volumes_with_the_same_directory_or_storage_are_refused() {
    let first = COMMON.replace("MODE", "ReadWriteOnce");
    let second = first
        .replace("pv-1", "pv-2")
        .replace("name: data", "name: other")
        .replace("data-uid", "other-uid");
    let with_volume = |volume: &str| {
        let pod = pod("one", false);
        objects(&format!("{first}---{second}{pod}  - {volume}\n"))
    };
    let problem = |objects: &Objects| {
        let desired = desired_state(objects);
        let problems = desired.problems.get("one-uid").cloned().unwrap_or_default();
        (problems.get("w").cloned(), desired.volumes.len())
    };
    let (same_storage, volumes) = problem(&with_volume(
        "{name: w, persistentVolumeClaim: {claimName: other}}",
    ));
    let message = same_storage.expect("a problem").to_string();
    assert!(
        message.starts_with("persistentvolumes pv-1 and pv-2 are the same storage"),
        "{message}"
    );
    assert_eq!(volumes, 1);
    assert_eq!(
        problem(&with_volume(
            "{name: w, persistentVolumeClaim: {claimName: data}}"
        )),
        (None, 1)
    );
    // An inline volume has the name of a `PersistentVolume`.
    let inline = "{name: w, csi: {driver: csi.example}}";
    assert_eq!(problem(&with_volume(inline)), (None, 2));
    let text = format!(
        "{first}{}  - {}\n",
        pod("one", false),
        inline.replace('w', "pv-1")
    );
    let problems = desired_state(&objects(&text)).problems["one-uid"].clone();
    assert!(
        matches!(problems["pv-1"], VolumeProblem::DirectoryConflict { .. }),
        "{problems:?}"
    );
    // A refused volume does not keep an exclusive volume from other pods.
    let exclusive = first.replace("ReadWriteOnce", "ReadWriteOncePod");
    let inline = format!("  volumes:\n  - {}", inline.replace('w', "pv-1"));
    let refused_pod = pod("a-first", false).replace("  volumes:", &inline);
    let desired = desired_state(&objects(&format!(
        "{exclusive}{refused_pod}{}",
        pod("two", false)
    )));
    assert_eq!(desired.problems.keys().collect::<Vec<_>>(), ["a-first-uid"]);
    assert!(desired.volumes[&id()].mounts.contains_key("two-uid"));
}

#[test]
fn a_volume_without_a_handle_is_refused() {
    let text = COMMON.replace("handle-1", "''") + &pod("one", false);
    let problem = desired_state(&objects(&text)).problems["one-uid"]["v"].to_string();
    assert!(
        problem.contains("volumeHandle is empty; hint:"),
        "{problem}"
    );
}

/// KEP-2485, "Mount Enforcement".
#[test]
fn an_exclusive_volume_stays_with_its_holder() {
    let objects = with_mode("ReadWriteOncePod", &[("one", false), ("two", false)]);
    let refused_pods =
        |desired: &DesiredState| desired.problems.keys().cloned().collect::<Vec<_>>();
    let first_by_name = desired_state(&objects);
    assert_eq!(refused_pods(&first_by_name), ["two-uid"]);
    let problem = first_by_name.problems["two-uid"]["v"].to_string();
    assert_eq!(
        problem,
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod: default/one"
    );
    let held_by = |uid: &str| VolumeHolders::from([(id(), BTreeSet::from([uid.to_owned()]))]);
    assert_eq!(
        refused_pods(&desired_with(&objects, &held_by("two-uid"))),
        ["one-uid"]
    );
    // The holder may be a pod that isn't known any more.
    let unknown_holder = desired_with(&objects, &held_by("gone-uid"));
    assert_eq!(refused_pods(&unknown_holder), ["one-uid", "two-uid"]);
    assert!(
        unknown_holder.problems["one-uid"]["v"]
            .to_string()
            .ends_with("uid gone-uid")
    );
    let shared = with_mode("ReadWriteOnce", &[("one", false), ("two", false)]);
    assert_eq!(refused_pods(&desired_state(&shared)), Vec::<String>::new());
}

#[test]
fn a_volume_is_staged_and_then_published() {
    use Certainty::{Certain, Uncertain};
    let desired = desired_state(&with_mode("ReadWriteOnce", &[("one", false)]));
    let cases = [
        (actual(None, &[]), vec![VolumeStep::Stage]),
        (actual(Some(Uncertain), &[]), vec![VolumeStep::Stage]),
        (actual(Some(Certain), &[]), vec![publish("one-uid")]),
        (
            actual(Some(Certain), &[("one-uid", Uncertain)]),
            vec![publish("one-uid")],
        ),
        (actual(Some(Certain), &[("one-uid", Certain)]), vec![]),
        // After a restart both steps are repeated.
        (
            actual(Some(Uncertain), &[("one-uid", Uncertain)]),
            vec![VolumeStep::Stage],
        ),
    ];
    for (actual, expected) in cases {
        // These steps don't depend on whether the desired state is complete.
        assert_eq!(
            next_steps(&desired, &actual, false, &[]),
            expected,
            "{actual:?}"
        );
        assert_eq!(
            next_steps(&desired, &actual, true, &[]),
            expected,
            "{actual:?}"
        );
    }
}

#[test]
fn unused_volumes_wait_until_the_desired_state_is_complete() {
    use Certainty::{Certain, Uncertain};
    let desired = DesiredState::default();
    let published = actual(Some(Certain), &[("gone-uid", Uncertain)]);
    assert_eq!(next_steps(&desired, &published, false, &[]), []);
    let running = next_steps(&desired, &published, true, &["gone-uid"]);
    assert_eq!(running, [], "the pod's processes are still running");
    assert_eq!(
        next_steps(&desired, &published, true, &[]),
        [unpublish("gone-uid")]
    );
    for certainty in [Certain, Uncertain] {
        let staged = actual(Some(certainty), &[]);
        assert_eq!(next_steps(&desired, &staged, false, &[]), []);
        assert_eq!(
            next_steps(&desired, &staged, true, &[]),
            [VolumeStep::Unstage]
        );
    }
}

#[test]
fn unpublishing_comes_before_publishing() {
    use Certainty::Certain;
    let desired = desired_state(&with_mode(
        "ReadWriteOnce",
        &[("one", false), ("two", false)],
    ));
    let current = actual(Some(Certain), &[("gone-uid", Certain)]);
    let published = [publish("one-uid"), publish("two-uid")];
    assert_eq!(next_steps(&desired, &current, false, &[]), published);
    let all = [vec![unpublish("gone-uid")], published.to_vec()].concat();
    assert_eq!(next_steps(&desired, &current, true, &[]), all);
}

#[test]
fn a_volume_with_the_wrong_mounter_is_unmounted_first() {
    use Certainty::{Certain, Uncertain};
    let deferred = desired_state(&with_mode("ReadWriteOnce", &[("one", true)]));
    for certainty in [Certain, Uncertain] {
        let current = actual(Some(Certain), &[("one-uid", certainty)]);
        let steps = next_steps(&deferred, &current, true, &[]);
        assert_eq!(steps, [unpublish("one-uid")]);
    }
    // Deferral was switched off since the volume was published.
    let not_deferred = desired_state(&with_mode("ReadWriteOnce", &[("one", false)]));
    for (mounter, is_unpublished) in [(Mounter::Deferred, true), (Mounter::Runtime, false)] {
        let mut current = actual(Some(Certain), &[("one-uid", Certain)]);
        let mounts = &mut current.volumes.get_mut(&id()).unwrap().mounts;
        mounts.get_mut("one-uid").unwrap().mounter = mounter;
        let expected = if is_unpublished {
            vec![unpublish("one-uid")]
        } else {
            Vec::new()
        };
        assert_eq!(next_steps(&not_deferred, &current, true, &[]), expected);
        assert_eq!(next_steps(&not_deferred, &current, true, &["one-uid"]), []);
    }
    // While the running pods aren't known, the pod may have been started.
    let current = actual(Some(Certain), &[("one-uid", Uncertain)]);
    assert_eq!(
        next_steps(&deferred, &current, false, &[]),
        [publish("one-uid")]
    );
    let current = actual(Some(Certain), &[("one-uid", Certain)]);
    assert_eq!(next_steps(&deferred, &current, true, &["one-uid"]), []);
}

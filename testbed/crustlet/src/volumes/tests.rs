//! Tests of the desired volumes and of their steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::actual::{Actual, Certainty, Mount, Mounter};
use super::desired::{Desired, Holders, Problem};
use super::plan::{Allowed, Step, plan};
use super::spec::{Lifecycle, Unresolved, VolumeId};
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

fn wanted(objects: &Objects) -> Desired {
    wanted_beside(objects, &Holders::new())
}

fn wanted_beside(objects: &Objects, holders: &Holders) -> Desired {
    let pods: Vec<Arc<Pod>> = objects.pods.values().cloned().collect();
    Desired::of(objects, &pods, holders, &Desired::default())
}

fn id() -> VolumeId {
    VolumeId {
        driver: "csi.example".to_owned(),
        handle: "handle-1".to_owned(),
    }
}

fn actual(staged: Option<Certainty>, mounts: &[(&str, Certainty)]) -> Actual {
    let mut actual = Actual::default();
    let entry = actual.entry(&id(), Lifecycle::Persistent);
    entry.staged = staged;
    entry.mounts = mounts
        .iter()
        .map(|(pod, certainty)| {
            let mount = Mount {
                certainty: *certainty,
                directory: "pv-1".to_owned(),
                mounter: Mounter::Driver,
                late: None,
            };
            ((*pod).to_owned(), mount)
        })
        .collect();
    actual
}

fn next(desired: &Desired, actual: &Actual, unmounts: bool, running: &[&str]) -> Vec<Step> {
    let running = running.iter().map(|&it| it.to_owned()).collect();
    let allowed = Allowed {
        unmounts,
        running: &running,
        begun: &running,
    };
    let steps = plan(desired, actual, allowed);
    assert!(steps.len() <= 1, "{steps:?}");
    steps
        .into_iter()
        .next()
        .map_or(Vec::new(), |(_, steps)| steps)
}

fn publish(pod: &str) -> Step {
    Step::Publish(pod.to_owned())
}

fn unpublish(pod: &str) -> Step {
    Step::Unpublish(pod.to_owned())
}

#[test]
fn a_pods_volume_is_its_claims() {
    let desired = wanted(&with_mode("ReadWriteOnce", &[("one", true)]));
    let (found, mount) = desired.of_pod("one-uid").next().expect("a volume");
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
fn what_is_missing_is_told_by_its_name() {
    let mut objects = with_mode("ReadWriteOnce", &[("one", false)]);
    objects.volumes.clear();
    let problem = |objects: &Objects| wanted(objects).problems["one-uid"]["v"].clone();
    let claim = Name::new("default", "data");
    let missing = Unresolved::NoVolume {
        claim: claim.clone(),
        volume: "pv-1".to_owned(),
    };
    assert_eq!(problem(&objects), Problem::Unresolved(missing));
    objects.claims.clear();
    assert_eq!(
        problem(&objects),
        Problem::Unresolved(Unresolved::NoClaim(claim))
    );
    assert_eq!(wanted(&objects).volumes, BTreeMap::new());
}

/// Who binds and who mounts read the same.
#[test]
fn a_claim_has_a_volume_if_each_names_the_other() {
    let text = COMMON.replace("MODE", "ReadWriteOnce") + &pod("one", false);
    let problem = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let desired = wanted(&objects(&text.replace(from, to)));
        desired.problems["one-uid"]["v"].clone()
    };
    let claim = Name::new("default", "data");
    let unbound = Problem::Unresolved(Unresolved::Unbound(claim.clone()));
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
        // It may be being destroyed.
        (
            "---\napiVersion: v1\nkind: PersistentVolumeClaim",
            "status: {phase: Released}\n---\napiVersion: v1\nkind: PersistentVolumeClaim",
            "data",
        ),
    ] {
        let other = Name::new("default", other);
        let others = Unresolved::Others(claim.clone(), "pv-1".to_owned(), other);
        assert_eq!(problem(from, to), Problem::Unresolved(others), "{to}");
    }
}

/// As kubelet has it.
#[test]
fn a_claim_that_is_to_go_is_no_new_pods() {
    let text = COMMON.replace("MODE", "ReadWriteOnce") + &pod("one", false) + &pod("two", false);
    let before = wanted(&objects(&text.replace(&pod("two", false), "")));
    let deleted = objects(&text.replace(
        "uid: data-uid, ann",
        "uid: data-uid, deletionTimestamp: '2026-01-01T00:00:00Z', ann",
    ));
    let pods: Vec<Arc<Pod>> = deleted.pods.values().cloned().collect();
    let refused = |holders: &Holders, before: &Desired| {
        let desired = Desired::of(&deleted, &pods, holders, before);
        desired.problems.into_keys().collect::<Vec<_>>()
    };
    let (nothing, nobody) = (Desired::default(), Holders::new());
    assert_eq!(refused(&nobody, &nothing), ["one-uid", "two-uid"]);
    assert_eq!(refused(&nobody, &before), ["two-uid"]);
    let has = Holders::from([(id(), BTreeSet::from(["two-uid".to_owned()]))]);
    assert_eq!(refused(&has, &nothing), ["one-uid"]);
    let desired = wanted(&deleted);
    let told = desired.problems["one-uid"]["v"].to_string();
    assert_eq!(
        told,
        "can't start pod because PVC default/data is being deleted"
    );
}

/// Two `PersistentVolume`s of the same storage, of which one says that it is one pod's.
#[test]
fn storage_is_one_pods_when_any_of_its_volumes_says_so() {
    let shared = COMMON.replace("MODE", "ReadWriteOnce");
    let own = COMMON
        .replace("MODE", "ReadWriteOncePod")
        .replace("pv-1", "pv-2")
        .replace("name: data", "name: own")
        .replace("data-uid", "own-uid");
    let with_own = pod("two", false).replace("claimName: data", "claimName: own");
    for pods in [
        [pod("one", false), with_own.clone()],
        [with_own.replace("two", "a-first"), pod("one", false)],
    ] {
        let objects = objects(&format!("{shared}---{own}{}{}", pods[0], pods[1]));
        let desired = wanted(&objects);
        assert_eq!(desired.problems.len(), 1, "{:?}", desired.problems);
        let second = objects.pods.values().next_back().unwrap();
        let problem = &desired.problems[&second.uid]["v"];
        assert!(matches!(problem, Problem::Exclusive(_)), "{problem:?}");
    }
    // Those that have it keep it.
    let three = format!(
        "{shared}---{own}{}{}{with_own}",
        pod("one", false),
        pod("three", false)
    );
    let both = BTreeSet::from(["one-uid".to_owned(), "three-uid".to_owned()]);
    let desired = wanted_beside(&objects(&three), &Holders::from([(id(), both)]));
    assert_eq!(desired.problems.keys().collect::<Vec<_>>(), ["two-uid"]);
}

/// Each volume of a pod has a directory of its own, and each storage one.
#[test]
fn what_would_share_a_place_is_not_wanted_twice() {
    let first = COMMON.replace("MODE", "ReadWriteOnce");
    let second = first
        .replace("pv-1", "pv-2")
        .replace("name: data", "name: other")
        .replace("data-uid", "other-uid");
    let with = |volume: &str| {
        let pod = pod("one", false);
        objects(&format!("{first}---{second}{pod}  - {volume}\n"))
    };
    let problem = |objects: &Objects| {
        let desired = wanted(objects);
        let problems = desired.problems.get("one-uid").cloned().unwrap_or_default();
        (problems.get("w").cloned(), desired.volumes.len())
    };
    let (twins, volumes) = problem(&with(
        "{name: w, persistentVolumeClaim: {claimName: other}}",
    ));
    let told = twins.expect("a problem").to_string();
    assert!(
        told.starts_with("persistentvolumes pv-1 and pv-2 are the same storage"),
        "{told}"
    );
    assert_eq!(volumes, 1);
    assert_eq!(
        problem(&with("{name: w, persistentVolumeClaim: {claimName: data}}")),
        (None, 1)
    );
    // The pod's own by the name of a `PersistentVolume`.
    let inline = "{name: w, csi: {driver: csi.example}}";
    assert_eq!(problem(&with(inline)), (None, 2));
    let text = format!(
        "{first}{}  - {}\n",
        pod("one", false),
        inline.replace('w', "pv-1")
    );
    let problems = wanted(&objects(&text)).problems["one-uid"].clone();
    assert!(
        matches!(problems["pv-1"], Problem::Place { .. }),
        "{problems:?}"
    );
    // It has nothing that is another's, then.
    let own = first.replace("ReadWriteOnce", "ReadWriteOncePod");
    let inline = format!("  volumes:\n  - {}", inline.replace('w', "pv-1"));
    let never = pod("a-first", false).replace("  volumes:", &inline);
    let desired = wanted(&objects(&format!("{own}{never}{}", pod("two", false))));
    assert_eq!(desired.problems.keys().collect::<Vec<_>>(), ["a-first-uid"]);
    assert!(desired.volumes[&id()].mounts.contains_key("two-uid"));
}

#[test]
fn a_volume_without_a_handle_is_none() {
    let text = COMMON.replace("handle-1", "''") + &pod("one", false);
    let problem = wanted(&objects(&text)).problems["one-uid"]["v"].to_string();
    assert!(
        problem.contains("volumeHandle is empty; hint:"),
        "{problem}"
    );
}

/// KEP-2485, "Mount Enforcement".
#[test]
fn a_volume_for_one_pod_is_the_one_that_has_it() {
    let objects = with_mode("ReadWriteOncePod", &[("one", false), ("two", false)]);
    let refused = |desired: &Desired| desired.problems.keys().cloned().collect::<Vec<_>>();
    let desired = wanted(&objects);
    assert_eq!(refused(&desired), ["two-uid"]);
    let problem = desired.problems["two-uid"]["v"].to_string();
    assert_eq!(
        problem,
        "volume uses the ReadWriteOncePod access mode and is already in use by another pod: default/one"
    );
    let has = |uid: &str| Holders::from([(id(), BTreeSet::from([uid.to_owned()]))]);
    assert_eq!(
        refused(&wanted_beside(&objects, &has("two-uid"))),
        ["one-uid"]
    );
    // Also one that nobody knows any more, until it is unpublished.
    let desired = wanted_beside(&objects, &has("gone-uid"));
    assert_eq!(refused(&desired), ["one-uid", "two-uid"]);
    assert!(
        desired.problems["one-uid"]["v"]
            .to_string()
            .ends_with("uid gone-uid")
    );
    let shared = with_mode("ReadWriteOnce", &[("one", false), ("two", false)]);
    assert_eq!(refused(&wanted(&shared)), Vec::<String>::new());
}

#[test]
fn a_volume_is_staged_then_published_then_left_alone() {
    use Certainty::{Certain, Uncertain};
    let desired = wanted(&with_mode("ReadWriteOnce", &[("one", false)]));
    let cases = [
        (actual(None, &[]), vec![Step::Stage]),
        (actual(Some(Uncertain), &[]), vec![Step::Stage]),
        (actual(Some(Certain), &[]), vec![publish("one-uid")]),
        (
            actual(Some(Certain), &[("one-uid", Uncertain)]),
            vec![publish("one-uid")],
        ),
        (actual(Some(Certain), &[("one-uid", Certain)]), vec![]),
        // After a restart all is done once more.
        (
            actual(Some(Uncertain), &[("one-uid", Uncertain)]),
            vec![Step::Stage],
        ),
    ];
    for (actual, expected) in cases {
        // It may be done before all that is wanted is known.
        assert_eq!(next(&desired, &actual, false, &[]), expected, "{actual:?}");
        assert_eq!(next(&desired, &actual, true, &[]), expected, "{actual:?}");
    }
}

#[test]
fn what_nobody_wants_goes_once_all_that_is_wanted_is_known() {
    use Certainty::{Certain, Uncertain};
    let nothing = Desired::default();
    let there = actual(Some(Certain), &[("gone-uid", Uncertain)]);
    assert_eq!(next(&nothing, &there, false, &[]), []);
    let running = next(&nothing, &there, true, &["gone-uid"]);
    assert_eq!(running, [], "its processes are there");
    assert_eq!(next(&nothing, &there, true, &[]), [unpublish("gone-uid")]);
    for certainty in [Certain, Uncertain] {
        let staged = actual(Some(certainty), &[]);
        assert_eq!(next(&nothing, &staged, false, &[]), []);
        assert_eq!(next(&nothing, &staged, true, &[]), [Step::Unstage]);
    }
}

#[test]
fn who_goes_goes_before_who_comes() {
    use Certainty::Certain;
    let desired = wanted(&with_mode(
        "ReadWriteOnce",
        &[("one", false), ("two", false)],
    ));
    let there = actual(Some(Certain), &[("gone-uid", Certain)]);
    let coming = [publish("one-uid"), publish("two-uid")];
    assert_eq!(next(&desired, &there, false, &[]), coming);
    let all = [vec![unpublish("gone-uid")], coming.to_vec()].concat();
    assert_eq!(next(&desired, &there, true, &[]), all);
}

#[test]
fn a_volume_to_be_deferred_is_unmounted_before_its_pod_begins() {
    use Certainty::{Certain, Uncertain};
    let desired = wanted(&with_mode("ReadWriteOnce", &[("one", true)]));
    for certainty in [Certain, Uncertain] {
        let there = actual(Some(Certain), &[("one-uid", certainty)]);
        let steps = next(&desired, &there, true, &[]);
        assert_eq!(steps, [unpublish("one-uid")]);
    }
    // One that begins anew may be wanted otherwise.
    let plain = wanted(&with_mode("ReadWriteOnce", &[("one", false)]));
    for (mounter, goes) in [(Mounter::Deferred, true), (Mounter::Runtime, false)] {
        let mut there = actual(Some(Certain), &[("one-uid", Certain)]);
        let mounts = &mut there.volumes.get_mut(&id()).unwrap().mounts;
        mounts.get_mut("one-uid").unwrap().mounter = mounter;
        let expected = if goes {
            vec![unpublish("one-uid")]
        } else {
            Vec::new()
        };
        assert_eq!(next(&plain, &there, true, &[]), expected);
        assert_eq!(next(&plain, &there, true, &["one-uid"]), []);
    }
    // Until it is known what runs, it may have begun.
    let there = actual(Some(Certain), &[("one-uid", Uncertain)]);
    assert_eq!(next(&desired, &there, false, &[]), [publish("one-uid")]);
    let there = actual(Some(Certain), &[("one-uid", Certain)]);
    assert_eq!(next(&desired, &there, true, &["one-uid"]), []);
}

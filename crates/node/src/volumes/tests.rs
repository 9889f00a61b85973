//! What is wanted, and what is done about it.

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
  accessModes: [MODE]
  capacity: {storage: 1Gi}
  mountOptions: [noatime]
  csi: {driver: csi.example, volumeHandle: handle-1, fsType: ext4}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
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
    Desired::of(objects, &pods, holders)
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
fn what_is_to_be_deferred_is_mounted_no_more_unless_the_pod_has_begun() {
    use Certainty::{Certain, Uncertain};
    let desired = wanted(&with_mode("ReadWriteOnce", &[("one", true)]));
    for certainty in [Certain, Uncertain] {
        let there = actual(Some(Certain), &[("one-uid", certainty)]);
        let steps = next(&desired, &there, true, &[]);
        assert_eq!(steps, [unpublish("one-uid")]);
    }
    // Until it is known what runs, it may have begun.
    let there = actual(Some(Certain), &[("one-uid", Uncertain)]);
    assert_eq!(next(&desired, &there, false, &[]), [publish("one-uid")]);
    let there = actual(Some(Certain), &[("one-uid", Certain)]);
    assert_eq!(next(&desired, &there, true, &["one-uid"]), []);
}

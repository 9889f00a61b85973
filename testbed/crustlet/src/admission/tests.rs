//! KEP-2857's stories 1 to 3, and what else a pod may ask for.

use serde_json::json;

use super::*;
use crate::objects::Kind;
use crate::objects::manifest::read;

const POLICY: &str = "
apiVersion: crustlet.crust.dev/v1alpha1
kind: DeferPolicy
rules:
- storageClassName: fast-storage
  runtimeClassName: microvm
  postMount:
    fsGroup: true
    fsGroupChangePolicy: [Always, OnRootMismatch]
    subPath: true
    seLinuxRelabel: true
- {storageClassName: fast-storage, runtimeClassName: lesser}
- {driver: plugin1.example.com, runtimeClassName: microvm}
";

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast-storage}
provisioner: plugin1.example.com
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: fast-storage}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: more}
spec: {storageClassName: fast-storage}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: slow}
spec: {storageClassName: slow}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {storageClassName: fast-storage, volumeMode: Block}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: unsaid}
spec: {}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: classy}
spec:
  storageClassName: fast-storage
  csi: {driver: other.example.com, volumeHandle: '1'}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: by-volume}
spec: {volumeName: classy}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: bare}
spec:
  csi: {driver: plugin1.example.com, volumeHandle: '2'}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: by-driver}
spec: {volumeName: bare}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: nfs}
spec:
  storageClassName: fast-storage
  nfs: {server: s, path: /}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: by-nfs}
spec: {volumeName: nfs}
";

/// KEP-2857's story 1.
const STORY: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  runtimeClassName: microvm
  securityContext:
    fsGroup: 100
    fsGroupChangePolicy: OnRootMismatch
    seLinuxOptions: {level: 's0:c1,c2'}
  initContainers: []
  containers:
  - name: app
    image: app
    volumeMounts:
    - {name: one, mountPath: /one, subPath: a}
    - {name: two, mountPath: /two, subPathExpr: $(POD)}
  volumes:
  - name: one
    persistentVolumeClaim: {claimName: data, readOnly: false}
  - name: two
    persistentVolumeClaim: {claimName: more}
";

fn objects(text: &str) -> Objects {
    let mut objects = Objects::default();
    for manifest in read(text).expect("manifests") {
        objects.insert(manifest);
    }
    objects
}

fn admitted(pod: &str) -> Admission {
    let objects = objects(&format!("{OBJECTS}\n---\n{pod}"));
    let policy = Policy::read(POLICY).expect("a policy");
    let (name, pod) = objects.pods.first_key_value().expect("a pod");
    let document = &objects.documents[&(Kind::Pod, name.clone())];
    admit(&policy, &objects, pod, document)
}

/// What was decided, a volume a line.
fn told(admission: &Admission) -> Vec<String> {
    admission
        .decisions
        .iter()
        .map(Decision::to_string)
        .collect()
}

fn only(pod: &str) -> String {
    let told = told(&admitted(pod));
    assert_eq!(told.len(), 1, "{told:?}");
    told[0].clone()
}

/// A pod with one volume, and whatever else its spec has.
fn pod(volume: &str, rest: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  runtimeClassName: microvm
  containers:
  - {{name: app, image: app, volumeMounts: [{{name: v, mountPath: /v}}]}}
  volumes:
  - {{name: v, {volume}}}
{rest}"
    )
}

const DATA: &str = "persistentVolumeClaim: {claimName: data}";

#[test]
fn story_1_both_volumes_are_deferred_if_all_is_supported() {
    let admission = admitted(STORY);
    let by = "deferred: storage class fast-storage with runtime class microvm";
    assert_eq!(
        told(&admission),
        [format!("volume one: {by}"), format!("volume two: {by}")]
    );
    let volumes = &admission.document["spec"]["volumes"];
    let source = json!({"claimName": "data", "readOnly": false, "deferFSMount": true});
    assert_eq!(volumes[0]["persistentVolumeClaim"], source);
    assert_eq!(volumes[1]["persistentVolumeClaim"]["deferFSMount"], true);
}

#[test]
fn nothing_else_of_the_pod_changes() {
    let plain = objects(STORY);
    let (_, before) = plain.documents.first_key_value().expect("a pod");
    let mut after = admitted(STORY).document;
    for volume in after["spec"]["volumes"].as_array_mut().expect("volumes") {
        let source = volume["persistentVolumeClaim"].as_object_mut();
        source.expect("a source").remove("deferFSMount");
    }
    assert_eq!(after.to_string(), before.to_string(), "the order neither");
}

#[test]
fn what_is_admitted_once_more_stays_as_it_is() {
    let once = admitted(STORY);
    let again = admitted(&once.document.to_string());
    assert_eq!(again.document.to_string(), once.document.to_string());
    assert_eq!(told(&again)[0], "volume one: deferred: the pod says so");
}

#[test]
fn stories_2_and_3_what_a_rule_does_not_have_leaves_the_volume() {
    let admission = admitted(&STORY.replace("microvm", "lesser"));
    let why = "left: the pod asks for fsGroup, fsGroupChangePolicy OnRootMismatch, subPath and seLinuxRelabel, \
        which the rule of storage class fast-storage with runtime class lesser doesn't have in its postMount";
    assert_eq!(
        told(&admission),
        [format!("volume one: {why}"), format!("volume two: {why}")]
    );
    let plain = objects(STORY);
    let (_, before) = plain.documents.first_key_value().expect("a pod");
    let unchanged = before.to_string().replace("microvm", "lesser");
    assert_eq!(admission.document.to_string(), unchanged);
}

#[test]
fn a_volume_is_known_by_its_class_or_by_its_driver() {
    let class = "volume v: deferred: storage class fast-storage with runtime class microvm";
    let driver = "volume v: deferred: driver plugin1.example.com with runtime class microvm";
    let cases = [
        (DATA, class),
        ("persistentVolumeClaim: {claimName: by-volume}", class),
        ("persistentVolumeClaim: {claimName: by-driver}", driver),
        (
            "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast-storage}}}",
            class,
        ),
        ("csi: {driver: plugin1.example.com}", driver),
        (
            "persistentVolumeClaim: {claimName: slow}",
            "left: no rule has storage class slow with",
        ),
        (
            "csi: {driver: other.example.com}",
            "left: no rule has driver other.example.com with",
        ),
        (
            "persistentVolumeClaim: {claimName: raw}",
            "left: volumeMode Block",
        ),
        (
            "persistentVolumeClaim: {claimName: by-nfs}",
            "left: persistentvolume nfs is no CSI driver's",
        ),
        (
            "persistentVolumeClaim: {claimName: gone}",
            "left: persistentvolumeclaim default/gone not found",
        ),
        (
            "persistentVolumeClaim: {claimName: unsaid}",
            "left: persistentvolumeclaim default/unsaid has no storage class",
        ),
        ("emptyDir: {}", "left: it is no claim's and no CSI driver's"),
    ];
    for (volume, expected) in cases {
        let told = only(&pod(volume, ""));
        assert!(told.contains(expected), "{volume}: {told}");
    }
}

#[test]
fn a_claim_that_says_no_class_has_the_default_one() {
    let default = "metadata: {name: fast-storage, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}";
    let text = OBJECTS.replace("metadata: {name: fast-storage}", default);
    let objects = objects(&text);
    let class = |claim: &str| {
        let claim = &objects.claims[&Name::new("default", claim)];
        class_of(&objects, claim.spec.as_ref().expect("a spec"))
    };
    assert_eq!(class("unsaid"), Some("fast-storage"));
    assert_eq!(class("slow"), Some("slow"));
    assert_eq!(class("by-driver"), None, "its volume has none");
}

#[test]
fn what_is_asked_for_is_seen_wherever_it_is_said() {
    let lesser = |volume: &str, rest: &str| {
        let text = pod(volume, rest).replace("microvm", "lesser");
        only(&text).replace("volume v: left: the pod asks for ", "")
    };
    let init = "  initContainers:\n  - {name: i, image: i, volumeMounts: [{name: v, mountPath: /v, subPathExpr: $(X)}]}";
    let labelled = "  initContainers:\n  - {name: i, image: i, securityContext: {seLinuxOptions: {type: t}}, volumeMounts: MOUNTS}";
    let mounts = "[{name: v, mountPath: /v}]";
    let read_only = "persistentVolumeClaim: {claimName: data, readOnly: true}";
    let deferred = "volume v: deferred";
    let cases = [
        (DATA, "  securityContext: {fsGroup: 0}", "fsGroup,"),
        (read_only, "  securityContext: {fsGroup: 0}", "fsGroup,"),
        (
            DATA,
            "  securityContext: {fsGroup: 0, fsGroupChangePolicy: Never}",
            "fsGroup and fsGroupChangePolicy Never,",
        ),
        (
            DATA,
            "  securityContext: {fsGroupChangePolicy: Always}",
            deferred,
        ),
        (DATA, init, "subPath,"),
        (
            DATA,
            "  securityContext: {seLinuxOptions: {level: s0}}",
            "seLinuxRelabel,",
        ),
        (DATA, "  securityContext: {seLinuxOptions: {}}", deferred),
        (
            read_only,
            "  securityContext: {seLinuxOptions: {level: s0}}",
            deferred,
        ),
        (DATA, &labelled.replace("MOUNTS", mounts), "seLinuxRelabel,"),
        (DATA, &labelled.replace("MOUNTS", "[]"), deferred),
        (DATA, "", deferred),
    ];
    for (volume, rest, expected) in cases {
        let told = lesser(volume, rest);
        assert!(told.starts_with(expected), "{volume} {rest}: {told}");
    }
    let never = "  securityContext: {fsGroup: 0, fsGroupChangePolicy: Never}";
    let told = only(&pod(DATA, never));
    assert!(
        told.contains("asks for fsGroupChangePolicy Never, "),
        "{told}"
    );
}

/// There is one mount for both, and kubelet's part refuses a pod in which they disagree.
#[test]
fn volumes_of_one_claim_are_decided_alike() {
    let text = STORY.replace("claimName: more", "claimName: data");
    let text = text.replace(", subPathExpr: $(POD)", "");
    let policy = POLICY.replace("    subPath: true\n", "");
    let objects = objects(&format!("{OBJECTS}\n---\n{text}"));
    let (name, pod) = objects.pods.first_key_value().expect("a pod");
    let document = &objects.documents[&(Kind::Pod, name.clone())];
    let policy = Policy::read(&policy).expect("a policy");
    let told = told(&admit(&policy, &objects, pod, document));
    for told in told {
        assert!(told.contains("left: the pod asks for subPath, "), "{told}");
    }
}

#[test]
fn what_the_pod_says_is_never_taken_back() {
    let said = "persistentVolumeClaim: {claimName: slow, deferFSMount: true}";
    let admission = admitted(&pod(said, ""));
    assert_eq!(told(&admission), ["volume v: deferred: the pod says so"]);
    let source = &admission.document["spec"]["volumes"][0]["persistentVolumeClaim"];
    assert_eq!(source["deferFSMount"], true);
}

/// KEP-2857, "`DeferFSMount` field in Pod Spec".
#[test]
fn false_becomes_true_until_the_pod_is_started() {
    let said = "persistentVolumeClaim: {deferFSMount: false, claimName: data}";
    let admission = admitted(&pod(said, ""));
    let source = &admission.document["spec"]["volumes"][0]["persistentVolumeClaim"];
    assert_eq!(
        source.to_string(),
        r#"{"deferFSMount":true,"claimName":"data"}"#
    );
    let scheduled = "status: {conditions: [{type: PodScheduled, status: 'True'}]}";
    assert!(only(&pod(said, scheduled)).contains("deferred"));
    let started = "status: {conditions: [{type: Initialized, status: 'True'}]}";
    let told = only(&pod(said, started));
    assert_eq!(told, "volume v: left: the pod was started already");
}

#[test]
fn without_a_runtime_class_or_a_rule_nothing_is_deferred() {
    let plain = pod(DATA, "").replace("  runtimeClassName: microvm\n", "");
    assert_eq!(
        only(&plain),
        "volume v: left: the pod has no runtimeClassName"
    );
    let other = pod(DATA, "").replace("microvm", "other");
    assert_eq!(
        only(&other),
        "volume v: left: no rule has storage class fast-storage with runtime class other"
    );
}

//! Tests of KEP-2857's stories 1 to 3, and of everything else that a pod may need.

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
metadata: {name: no-class}
spec: {}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: with-class}
spec:
  storageClassName: fast-storage
  csi: {driver: other.example.com, volumeHandle: '1'}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: by-volume}
spec: {volumeName: with-class}
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

/// The pod of KEP-2857's story 1.
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

fn admit_pod(pod: &str) -> Admission {
    let objects = objects(&format!("{OBJECTS}\n---\n{pod}"));
    let policy = DeferPolicy::read(POLICY).expect("a policy");
    let (name, pod) = objects.pods.first_key_value().expect("a pod");
    let document = &objects.documents[&(Kind::Pod, name.clone())];
    admit(&policy, &objects, pod, document)
}

/// Returns the decisions, one line for each volume.
fn decisions(admission: &Admission) -> Vec<String> {
    admission
        .decisions
        .iter()
        .map(VolumeDecision::to_string)
        .collect()
}

fn only_decision(pod: &str) -> String {
    let decisions = decisions(&admit_pod(pod));
    assert_eq!(decisions.len(), 1, "{decisions:?}");
    decisions[0].clone()
}

/// Returns the manifest of a pod with one volume. `rest` is added to its spec.
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
    let admission = admit_pod(STORY);
    let rule = "deferred: storage class fast-storage with runtime class microvm";
    assert_eq!(
        decisions(&admission),
        [format!("volume one: {rule}"), format!("volume two: {rule}")]
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
    let mut after = admit_pod(STORY).document;
    for volume in after["spec"]["volumes"].as_array_mut().expect("volumes") {
        let source = volume["persistentVolumeClaim"].as_object_mut();
        source.expect("a source").remove("deferFSMount");
    }
    assert_eq!(
        after.to_string(),
        before.to_string(),
        "not even the order of the fields changes"
    );
}

#[test]
fn a_second_admission_changes_nothing() {
    let first = admit_pod(STORY);
    let second = admit_pod(&first.document.to_string());
    assert_eq!(second.document.to_string(), first.document.to_string());
    let decision = &decisions(&second)[0];
    assert_eq!(decision, "volume one: deferred: set in the pod");
}

#[test]
fn stories_2_and_3_a_rule_that_lacks_a_step_defers_nothing() {
    let admission = admit_pod(&STORY.replace("microvm", "lesser"));
    let reason = "not deferred: the pod needs fsGroup, fsGroupChangePolicy OnRootMismatch, subPath and seLinuxRelabel, \
        which the rule for storage class fast-storage with runtime class lesser doesn't have in postMount";
    assert_eq!(
        decisions(&admission),
        [
            format!("volume one: {reason}"),
            format!("volume two: {reason}")
        ]
    );
    let plain = objects(STORY);
    let (_, before) = plain.documents.first_key_value().expect("a pod");
    let unchanged = before.to_string().replace("microvm", "lesser");
    assert_eq!(admission.document.to_string(), unchanged);
}

#[test]
fn rules_match_the_storage_class_or_the_driver_of_a_volume() {
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
            "not deferred: no rule has storage class slow with",
        ),
        (
            "csi: {driver: other.example.com}",
            "not deferred: no rule has driver other.example.com with",
        ),
        (
            "persistentVolumeClaim: {claimName: raw}",
            "not deferred: volumeMode Block",
        ),
        (
            "persistentVolumeClaim: {claimName: by-nfs}",
            "not deferred: persistentvolume nfs is not a CSI volume",
        ),
        (
            "persistentVolumeClaim: {claimName: gone}",
            "not deferred: persistentvolumeclaim default/gone not found",
        ),
        (
            "persistentVolumeClaim: {claimName: no-class}",
            "not deferred: persistentvolumeclaim default/no-class has no storage class",
        ),
        (
            "emptyDir: {}",
            "not deferred: the volume is neither a claim nor a CSI volume",
        ),
    ];
    for (volume, expected) in cases {
        let decision = only_decision(&pod(volume, ""));
        assert!(decision.contains(expected), "{volume}: {decision}");
    }
}

#[test]
fn a_claim_without_a_class_has_the_default_class() {
    let default = "metadata: {name: fast-storage, annotations: {storageclass.kubernetes.io/is-default-class: 'true'}}";
    let text = OBJECTS.replace("metadata: {name: fast-storage}", default);
    let objects = objects(&text);
    let class = |claim: &str| {
        let claim = &objects.claims[&Name::new("default", claim)];
        class_of(&objects, claim.spec.as_ref().expect("a spec"))
    };
    assert_eq!(class("no-class"), Some("fast-storage"));
    assert_eq!(class("slow"), Some("slow"));
    assert_eq!(class("by-driver"), None, "its volume has none");
}

#[test]
fn needed_steps_are_found_in_all_containers_and_fields() {
    let lesser = |volume: &str, rest: &str| {
        let text = pod(volume, rest).replace("microvm", "lesser");
        only_decision(&text).replace("volume v: not deferred: the pod needs ", "")
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
        let decision = lesser(volume, rest);
        assert!(
            decision.starts_with(expected),
            "{volume} {rest}: {decision}"
        );
    }
    let never = "  securityContext: {fsGroup: 0, fsGroupChangePolicy: Never}";
    let decision = only_decision(&pod(DATA, never));
    assert!(
        decision.contains("needs fsGroupChangePolicy Never, "),
        "{decision}"
    );
}

/// Both volumes share one mount, and a pod in which only one of them is deferred is refused.
#[test]
fn volumes_of_one_claim_get_the_same_decision() {
    let text = STORY.replace("claimName: more", "claimName: data");
    let text = text.replace(", subPathExpr: $(POD)", "");
    let policy = POLICY.replace("    subPath: true\n", "");
    let objects = objects(&format!("{OBJECTS}\n---\n{text}"));
    let (name, pod) = objects.pods.first_key_value().expect("a pod");
    let document = &objects.documents[&(Kind::Pod, name.clone())];
    let policy = DeferPolicy::read(&policy).expect("a policy");
    let decisions = decisions(&admit(&policy, &objects, pod, document));
    for decision in decisions {
        assert!(
            decision.contains("not deferred: the pod needs subPath, "),
            "{decision}"
        );
    }
}

#[test]
fn a_volume_that_is_deferred_in_the_pod_stays_deferred() {
    let source_yaml = "persistentVolumeClaim: {claimName: slow, deferFSMount: true}";
    let admission = admit_pod(&pod(source_yaml, ""));
    assert_eq!(
        decisions(&admission),
        ["volume v: deferred: set in the pod"]
    );
    let source = &admission.document["spec"]["volumes"][0]["persistentVolumeClaim"];
    assert_eq!(source["deferFSMount"], true);
}

/// KEP-2857, "`DeferFSMount` field in Pod Spec".
#[test]
fn false_becomes_true_only_before_the_pod_is_started() {
    let source_yaml = "persistentVolumeClaim: {deferFSMount: false, claimName: data}";
    let admission = admit_pod(&pod(source_yaml, ""));
    let source = &admission.document["spec"]["volumes"][0]["persistentVolumeClaim"];
    assert_eq!(
        source.to_string(),
        r#"{"deferFSMount":true,"claimName":"data"}"#
    );
    let scheduled = "status: {conditions: [{type: PodScheduled, status: 'True'}]}";
    assert!(only_decision(&pod(source_yaml, scheduled)).contains("deferred"));
    let started = "status: {conditions: [{type: Initialized, status: 'True'}]}";
    let decision = only_decision(&pod(source_yaml, started));
    assert_eq!(
        decision,
        "volume v: not deferred: the pod has been started already"
    );
}

#[test]
fn without_a_runtime_class_or_a_rule_nothing_is_deferred() {
    let plain = pod(DATA, "").replace("  runtimeClassName: microvm\n", "");
    assert_eq!(
        only_decision(&plain),
        "volume v: not deferred: the pod has no runtimeClassName"
    );
    let without_rule = pod(DATA, "").replace("microvm", "other");
    assert_eq!(
        only_decision(&without_rule),
        "volume v: not deferred: no rule has storage class fast-storage with runtime class other"
    );
}

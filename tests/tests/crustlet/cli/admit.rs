//! `crustlet admit`: prints the decisions that the agent makes with the same policy.

use runcrust_tests::manifests::Pod;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Run, Setup, binary};
use serde_json::Value;

use super::{COMMAND_TIMEOUT, write_file};
use crate::scene::{Scene, microvm, policy};

/// Pods with volumes that are deferred, and that are not, for different reasons.
fn pods() -> Vec<Pod> {
    let pod = |name: &str| microvm(name).claim("data");
    vec![
        pod("plain").mount("data", "/data"),
        pod("parted").mount_as("data", "/data", "subPath: a"),
        pod("grouped").fs_group(7).mount("data", "/data"),
        pod("policed")
            .fs_group(7)
            .change_policy("Always")
            .mount("data", "/data"),
        Pod::new("classless").claim("data").mount("data", "/data"),
        microvm("refusing")
            .claim_as("data", "deferFSMount: false")
            .mount("data", "/data"),
        Pod::new("asking").deferred("data").mount("data", "/data"),
        microvm("claimless")
            .volume("scratch", "emptyDir: {}")
            .mount("scratch", "/data"),
        microvm("lost").claim("missing").mount("missing", "/data"),
    ]
}

fn deferred(document: &Value) -> Value {
    document["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"].clone()
}

#[test]
fn it_prints_what_the_agent_decides() {
    let policy = policy(Some(&["subPath: true", "fsGroup: true"]));
    let setup = Setup {
        policy: Some(&policy),
        ..Setup::default()
    };
    let scene = Scene::with(Delegate::Runc, &setup);
    let _data = scene.claim("data", "ext4");
    let manifests = scene.crustlet.manifest("x");
    let policy = write_file(&scene, "policy.yaml", &policy);
    let mut decisions = Vec::new();
    for pod in pods() {
        let name = pod.name();
        let path = write_file(&scene, "pod.yaml", &pod.to_string());
        let mut admit = std::process::Command::new(binary("crustlet"));
        admit.args(["admit", &path, "-o", "json", "--admission-policy", &policy]);
        admit.args(["--manifests", utf8(manifests.parent().unwrap())]);
        let run = Run::capture_within(&mut admit, COMMAND_TIMEOUT)
            .expect("the command ends")
            .success();
        let printed: Value = serde_json::from_str(&run.stdout).unwrap();
        let mut lines = run.stderr.lines();
        decisions.push(lines.next().unwrap_or_default().to_owned());
        scene.apply_pod(&pod);
        scene
            .crustlet
            .wait("the pod to be known", || scene.crustlet.has("pod", name));
        assert_eq!(
            deferred(&scene.crustlet.pod(name)),
            deferred(&printed),
            "{run}"
        );
        scene.end(&pod);
    }
    let reason = |index: usize| decisions[index].split_once(": ").map_or("", |it| it.1);
    let yes = "volume data: deferred: storage class fast-storage with runtime class microvm";
    assert_eq!([reason(0), reason(1), reason(2), reason(5)], [yes; 4]);
    assert_eq!(reason(6), "volume data: deferred: set in the pod");
    for (index, part) in [
        (3, "fsGroupChangePolicy"),
        (4, "runtimeClassName"),
        (7, "neither a claim"),
        (8, "not found"),
    ] {
        let decision = reason(index);
        assert!(
            decision.contains(": not deferred: ") && decision.contains(part),
            "{decision}"
        );
    }
}

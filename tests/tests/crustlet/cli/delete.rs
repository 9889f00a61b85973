//! `crustlet delete`

use std::fs;

use runcrust_tests::manifests::{Claim, documents};

use super::background::BackgroundCommand;
use super::{failure_message, scene, write_file};
use crate::scene::{CLASS, microvm, pod_with};

#[test]
fn it_waits_until_nothing_is_left_of_a_pod() {
    let scene = scene();
    let data = scene.claim("data", "ext4");
    let (web, other) = (pod_with("web", "data", true), microvm("other"));
    let both = write_file(&scene, "both.yaml", &documents(&[&web, &other]));
    let _ = scene.crustlet.cli(&["run", &both]).success();
    let run = scene.crustlet.cli(&["delete", "-f", &both]).success();
    assert_eq!(run.stdout, "pod \"web\" deleted\npod \"other\" deleted\n");
    let left = [&web, &other].map(|pod| scene.crustlet.pod_dir(&pod.uid()).exists());
    assert_eq!(left, [false, false]);
    assert!(scene.crustlet.all("pods").is_empty());
    scene.assert_nothing_left(&[&data]);

    // A timeout on the command line ends the wait before the pod's grace period ends.
    let slow = "trap 'sleep 1000' TERM; sleep 1000 & wait";
    let slow = microvm("slow").script(slow).to_string();
    let slow = slow.replace(
        "terminationGracePeriodSeconds: 1",
        "terminationGracePeriodSeconds: 1000",
    );
    let slow = write_file(&scene, "slow.yaml", &slow);
    let _ = scene.crustlet.cli(&["run", &slow]).success();
    let _ = scene
        .crustlet
        .cli(&["delete", "pod", "slow", "--wait=false"])
        .success();
    let message = failure_message(&scene, &["delete", "pod", "slow", "--timeout=1s"]);
    assert_eq!(
        message,
        "not deleted after 1s: pod/slow; hint: run `crustlet events` to see what they wait for"
    );
    let shown = scene
        .crustlet
        .cli(&["get", "pod", "slow", "--no-headers"])
        .success()
        .stdout;
    assert!(
        shown.starts_with("slow   1/1   Terminating   0 "),
        "{shown}"
    );
    let message = failure_message(&scene, &["run", &slow]);
    assert!(
        message.ends_with("Pod default/slow is being deleted; hint: wait until it is gone"),
        "{message}"
    );
}

#[test]
fn it_deletes_what_it_can_and_reports_the_rest() {
    let scene = scene();
    let (one, two, alone) = (microvm("one"), microvm("two"), microvm("alone"));
    scene.apply("shared", &[&one, &two]);
    scene.apply_pod(&alone);
    for pod in ["one", "two", "alone"] {
        scene.crustlet.wait_pod(pod, "Running");
    }
    let shared = scene.crustlet.manifest("shared");
    let containers = [&one, &two].map(|pod| scene.container(pod));
    let run = scene
        .crustlet
        .cli(&["delete", "pod", "one", "alone", "nope"])
        .failure();
    assert_eq!(run.stdout, "pod \"alone\" deleted\n");
    let expected = format!(
        "crustlet: Pod default/one is in {} with other objects; hint: remove it from that file; pods \"nope\" not found\n",
        shared.display()
    );
    assert_eq!(run.stderr, expected);
    assert_eq!(
        [&one, &two].map(|pod| scene.container(pod)),
        containers,
        "they keep running"
    );
    // The test does what the hint says.
    scene.apply("shared", &[&two]);
    scene.crustlet.wait_gone(&one.uid());
    let _ = scene.crustlet.cli(&["delete", "pod/two"]).success();
    assert!(!shared.exists());

    let refused = |arguments: &[&str]| failure_message(&scene, &[&["delete"], arguments].concat());
    assert_eq!(
        refused(&["pod"]),
        "no pods were named; hint: run `crustlet delete pod NAME`"
    );
    assert_eq!(
        refused(&["volume", "a"]),
        "volumes.crustlet.crust.dev cannot be deleted by a command; the agent removes them itself"
    );
    assert!(refused(&["node", "a"]).starts_with("unknown resource type \"node\"; hint: "));
    let wrong = write_file(&scene, "wrong.yaml", "kind: Pod\n");
    assert!(refused(&["-f", &wrong]).starts_with(&format!("{wrong}: document 1: ")));
}

#[test]
fn a_force_deleted_pod_is_ended_in_the_background() {
    let scene = scene();
    let data = scene.claim("data", "ext4");
    let pod = pod_with("web", "data", true);
    let web = write_file(&scene, "web.yaml", &pod.to_string());
    let _ = scene.crustlet.cli(&["run", &web]).success();
    let run = scene
        .crustlet
        .cli(&["delete", "pod", "web", "--force", "--wait=false"])
        .success();
    assert_eq!(run.stdout, "pod \"web\" force deleted\n");
    scene.crustlet.wait_gone(&pod.uid());
    scene.assert_nothing_left(&[&data]);
}

/// `--force` means a grace period of 0, as for kubectl.
#[test]
fn force_overrides_the_grace_period() {
    let scene = scene();
    // Neither pod ends on SIGTERM.
    let ignoring_sigterm = |name: &str| {
        let script = "trap '' TERM; while :; do sleep 1000 & wait; done";
        let pod = microvm(name).script(script).to_string();
        let grace = "terminationGracePeriodSeconds: ";
        pod.replace(&format!("{grace}1\n"), &format!("{grace}1000\n"))
    };
    for name in ["at-once", "hastened"] {
        let pod = write_file(&scene, name, &ignoring_sigterm(name));
        let _ = scene.crustlet.cli(&["run", &pod]).success();
    }
    let begun = ["delete", "pod", "hastened", "--wait=false"];
    let _ = scene.crustlet.cli(&begun).success();
    scene.crustlet.wait_event("pod/hastened", "Killing");
    for name in ["at-once", "hastened"] {
        let refused = [
            "delete",
            "pod",
            name,
            "--force",
            "--grace-period=7",
            "--wait=false",
        ];
        let message = failure_message(&scene, &refused);
        assert!(
            message.contains("grace_period_seconds is more than 0"),
            "{message}"
        );
        let forced = ["delete", "pod", name, "--force"];
        let run = scene.crustlet.cli(&forced).success();
        assert_eq!(run.stdout, format!("pod {name:?} force deleted\n"));
        let file = scene.crustlet.manifest(&format!("pod_default_{name}"));
        assert!(!file.exists());
        scene.crustlet.wait_gone(&microvm(name).uid());
    }
    scene.assert_nothing_left(&[]);
}

#[test]
fn a_claim_is_deleted_after_its_pods() {
    let scene = scene();
    let claim = Claim::of_class("data", CLASS, 32 << 20);
    let pod = pod_with("web", "data", false);
    let both = write_file(&scene, "both.yaml", &documents(&[&claim, &pod]));
    let _ = scene.crustlet.cli(&["run", &both]).success();
    let mut deleting = BackgroundCommand::start(&scene, &["delete", "pvc", "data"]);
    deleting.wait_for("persistentvolumeclaim \"data\" deleted\n");
    scene
        .crustlet
        .wait("the claim to be shown as Terminating", || {
            let shown = scene
                .crustlet
                .cli(&["get", "pvc", "data", "--no-headers"])
                .stdout;
            shown.starts_with("data   Terminating   pvc-")
        });
    assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
    // No new pod can use a claim that is being deleted.
    let late_pod = write_file(
        &scene,
        "late.yaml",
        &pod_with("late", "data", false).to_string(),
    );
    let message = scene.crustlet.cli(&["run", &late_pod, "--timeout=2s"]);
    let message = message.failure().stderr;
    assert!(message.contains("is being deleted"), "{message}");
    let _ = scene.crustlet.cli(&["delete", "pod", "late"]).success();
    assert!(deleting.is_running());
    let _ = scene.crustlet.cli(&["delete", "pod", "web"]).success();
    assert_eq!(deleting.wait().code(), Some(0));
    scene.crustlet.wait("the volume to be deleted", || {
        scene.csi.leftovers().is_empty()
    });
    let file = scene
        .crustlet
        .manifest("persistentvolumeclaim_default_data");
    assert!(!file.exists());
    assert!(fs::exists(scene.crustlet.manifest("classes")).unwrap());
}

//! `crustlet run`

use std::fs;

use runcrust_tests::console::on_terminal;
use runcrust_tests::manifests::{Claim, Pod, RuntimeClass, StorageClass, documents};
use runcrust_tests::{Delegate, Run, Setup};
use serde_json::Value;

use super::{failure_message, scene, wait_output, with_input, write_file};
use crate::scene::{MICROVM, Scene, microvm, pod_with};

/// Asserts that a command succeeded and printed these lines. Events are written to stderr.
#[track_caller]
fn assert_printed(run: &Run, lines: &[&str]) {
    assert!(run.status.success(), "{run}");
    assert_eq!(run.stdout.lines().collect::<Vec<_>>(), lines, "{run}");
}

#[test]
fn it_applies_a_whole_file_and_waits_for_its_pods() {
    let scene = Scene::bare(Delegate::Runc, &Setup::default());
    let class = StorageClass::new("fast").parameter("csi.storage.k8s.io/fstype: ext4");
    let pod = microvm("web").claim("data").mount("data", "/data");
    let claim = Claim::of_class("data", "fast", 32 << 20);
    let text = documents(&[&class, &RuntimeClass::new(MICROVM, "crust"), &pod, &claim]);
    let all = write_file(&scene, "all.yaml", &text);
    let run = scene.crustlet.cli(&["run", &all]);
    let lines = |outcome: [&str; 4]| {
        let [class, runtime, pod, claim] = outcome;
        vec![
            format!("storageclass.storage.k8s.io/fast {class}"),
            format!("runtimeclass.node.k8s.io/microvm {runtime}"),
            format!("pod/web {pod}"),
            format!("persistentvolumeclaim/data {claim}"),
            "pod/web running".to_owned(),
        ]
    };
    let created = lines(["created"; 4]);
    assert_printed(
        &run,
        &created.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let has_event = |run: &Run, part: &str| run.stderr.lines().any(|it| it.contains(part));
    assert!(has_event(&run, "pod/web   Started container app"), "{run}");
    assert_eq!(scene.sh(&pod, "echo x > /data/file; cat /data/file"), "x");
    // Each object has its own file, which an operator can read and edit.
    let mut files: Vec<String> = fs::read_dir(scene.crustlet.manifest("x").parent().unwrap())
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let expected = [
        "persistentvolumeclaim_default_data.yaml",
        "pod_default_web.yaml",
        "runtimeclass_microvm.yaml",
        "storageclass_fast.yaml",
    ];
    assert_eq!(files, expected);

    // A second call does not repeat earlier events.
    let second_run = scene.crustlet.cli(&["run", &all]);
    let unchanged = lines(["unchanged"; 4]);
    assert_printed(
        &second_run,
        &unchanged.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(second_run.stderr, "");
    let more = text.replace("32Mi", "64Mi");
    let run = with_input(&scene, &["run", "-"], &more);
    let configured = lines(["unchanged", "unchanged", "unchanged", "configured"]);
    assert_printed(
        &run,
        &configured.iter().map(String::as_str).collect::<Vec<_>>(),
    );

    let other = documents(&[&microvm("new"), &pod.clone().fs_group(7)]);
    let other = write_file(&scene, "other.yaml", &other);
    let message = failure_message(&scene, &["run", &other]);
    let expected = format!(
        "{other}: Pod default/web already exists with a different spec; hint: delete the pod first; before it starts, only deferFSMount can be set to true"
    );
    assert_eq!(message, expected);
    assert!(!scene.crustlet.has("pod", "new"), "all or nothing");
    let all = ["pod/web", "pvc/data"];
    let _ = scene
        .crustlet
        .cli(&[&["delete"][..], &all].concat())
        .success();
    scene.assert_nothing_left(&[]);
    scene.crustlet.wait("the volume to be deleted", || {
        scene.csi.leftovers().is_empty()
    });
}

#[test]
fn it_waits_until_the_timeout_and_says_what_for() {
    let scene = scene();
    let pod = pod_with("web", "missing", false);
    let web = write_file(&scene, "web.yaml", &pod.to_string());
    let run = scene.crustlet.cli(&["run", &web, "--no-wait"]);
    assert_printed(&run, &["pod/web created"]);
    assert_eq!(run.stderr, "");
    scene.crustlet.wait_event("pod/web", "FailedMount");
    let run = scene.crustlet.cli(&["run", &web, "--timeout=1s"]).failure();
    let expected = "crustlet: timed out after 1s: pod/web is not running yet: FailedMount: MountVolume.SetUp failed for volume \
        \"missing\" : persistentvolumeclaim default/missing not found";
    let last = run.stderr.lines().next_back().unwrap_or_default();
    assert!(last.starts_with(expected), "{run}");
    assert!(!run.stderr.contains('\u{1b}'), "progress on a pipe: {run}");
    assert_eq!(
        (run.status.code(), run.stdout.as_str()),
        (Some(1), "pod/web unchanged\n")
    );

    let command = scene.crustlet.client(&["run", &web, "--timeout=1s"]);
    let typescript = scene.node.dir().join("typescript");
    let run = Run::capture(&mut on_terminal(&command, &typescript)).failure();
    let status = "\r\u{1b}[K0s: pod/web is not running yet: FailedMount: ";
    assert!(run.stdout.contains(status), "{run}");
    assert!(
        run.stdout.contains(&format!("\r\u{1b}[K{expected}")),
        "the status is removed before the error is printed: {run}"
    );

    // The pod is deleted in the meantime.
    let mut waiting = super::background::BackgroundCommand::start(&scene, &["run", &web]);
    waiting.wait_for("pod/web unchanged");
    let _ = scene
        .crustlet
        .cli(&["delete", "pod", "web", "--force"])
        .success();
    assert_eq!(waiting.wait().code(), Some(1));
    assert!(
        waiting
            .text()
            .ends_with("crustlet: pod/web failed: the pod was deleted\n"),
        "{}",
        waiting.text()
    );
}

#[test]
fn it_waits_until_a_pod_that_ends_has_ended() {
    let scene = scene();
    let ending = |name: &str, code: u8| {
        let pod = Pod::new(name).class(MICROVM).restart_policy("Never");
        pod.script(&format!("echo done; exit {code}"))
    };
    let good = write_file(&scene, "good.yaml", &ending("good", 0).to_string());
    let run = scene.crustlet.cli(&["run", &good]);
    // The command may already see the pod while it runs.
    let lines: Vec<&str> = run.stdout.lines().collect();
    let ended = [
        vec!["pod/good created", "pod/good succeeded"],
        vec!["pod/good created", "pod/good running"],
    ];
    assert!(run.status.success() && ended.contains(&lines), "{run}");
    scene.crustlet.wait_pod("good", "Succeeded");
    assert_printed(
        &scene.crustlet.cli(&["run", &good]),
        &["pod/good unchanged", "pod/good succeeded"],
    );

    let bad = write_file(
        &scene,
        "bad.yaml",
        &documents(&[&ending("bad", 3), &microvm("other")]),
    );
    let _ = scene.crustlet.cli(&["run", &bad]);
    scene.crustlet.wait_pod("bad", "Failed");
    let run = scene.crustlet.cli(&["run", &bad]).failure();
    let last = run.stderr.lines().next_back();
    assert_eq!(
        last,
        Some("crustlet: pod/bad failed: container app ended with exit code 3: Error"),
        "{run}"
    );
    assert!(
        run.stdout.ends_with("pod/other running\n"),
        "the others are waited for: {run}"
    );
    wait_output(&scene, &["logs", "bad"], "done\n");
}

#[test]
fn an_invalid_manifest_changes_nothing() {
    let scene = scene();
    for (text, part) in [
        ("", "the manifest contains no object"),
        ("---\n---\n", "the manifest contains no object"),
        ("kind: [", "line 1"),
        ("kind: Pod\n", "document 1: "),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n",
            "document 1: v1 Node is not supported; hint: use one of v1 Pod, ",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
            "document 1: Pod default/a: spec.containers is empty",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: ../a}\nspec: {containers: [{name: a}]}\n",
            "\"../a\" is not a valid name; hint: use lower-case letters, digits, `-` and `.`, at most 253 bytes",
        ),
    ] {
        let whole = documents(&[&microvm("whole")]);
        // A valid document in the same file is not applied, either.
        let both = if text.contains("apiVersion") {
            format!("{text}---\n{whole}")
        } else {
            text.to_owned()
        };
        let path = write_file(&scene, "wrong.yaml", &both);
        let message = failure_message(&scene, &["run", &path]);
        assert!(
            message.starts_with(&format!("{path}: ")) && message.contains(part),
            "{message}"
        );
    }
    assert_eq!(scene.crustlet.all("pods"), Vec::<serde_json::Value>::new());
    let missing = failure_message(&scene, &["run", "/nowhere.yaml"]);
    assert!(
        missing.starts_with("read /nowhere.yaml: ") && missing.contains("No such file"),
        "{missing}"
    );
}

/// KEP-2857, "`DeferFSMount` field in Pod Spec".
#[test]
fn the_mounter_of_a_volume_is_fixed_once_the_pod_starts() {
    let scene = scene();
    let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
    let (plain, other) = (
        pod_with("web", "data", false),
        pod_with("web", "data", true),
    );
    let deferred = pod_with("deferred", "logs", true);
    for (pod, name) in [(&plain, "plain.yaml"), (&deferred, "deferred.yaml")] {
        let pod = write_file(&scene, name, &pod.to_string());
        let _ = scene.crustlet.cli(&["run", &pod]).success();
    }
    let shown = |pod: &str| {
        let mut pod = scene.crustlet.pod(pod);
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["deferFSMount"].take()
    };
    assert_eq!(
        (shown("web"), shown("deferred")),
        (Value::Null, true.into())
    );

    let other = other.to_string();
    let changed = write_file(&scene, "other.yaml", &other);
    let message = failure_message(&scene, &["run", &changed]);
    let expected = "Pod default/web has started, and the mounters of its volumes cannot change; hint: leave deferFSMount as it is, or delete the pod first";
    assert_eq!(message, format!("{changed}: {expected}"));
    let back = pod_with("deferred", "logs", false).to_string();
    let message = with_input(&scene, &["run", "-"], &back).failure().stderr;
    assert!(
        message.contains("Pod default/deferred has started"),
        "{message}"
    );
    // Applying the object as `get` prints it changes nothing.
    let same = scene.crustlet.pod("deferred").to_string();
    let _ = with_input(&scene, &["run", "-"], &same).success();

    scene.crustlet.write("pod_default_web", &other);
    let message = scene.crustlet.wait_event("pod/web", "FailedUpdate");
    assert!(message.contains("after the pod has started"), "{message}");
    assert_eq!(shown("web"), false);
    scene.assert_plain(&plain, &data);
    scene.crustlet.restart(&[]);
    scene.crustlet.wait_pod("web", "Running");
    assert_eq!(shown("web"), false);
    scene.assert_plain(&plain, &data);
    let _ = scene
        .crustlet
        .cli(&["delete", "pod", "web", "deferred"])
        .success();
    scene.assert_nothing_left(&[&data, &logs]);
}

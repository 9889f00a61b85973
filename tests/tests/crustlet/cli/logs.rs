//! `crustlet logs`

use super::background::BackgroundCommand;
use super::{failure_message, scene, wait_output};
use crate::scene::microvm;

#[test]
fn it_follows_a_container_until_it_ends() {
    let scene = scene();
    // The order of lines in two streams is only defined by their times.
    let script = "echo one; while ! test -e /tmp/two; do sleep 0.1; done; echo two >&2; while ! test -e /tmp/three; do sleep 0.1; done; printf 'th ree'; while ! test -e /tmp/end; do sleep 0.1; done; echo; echo end";
    let pod = microvm("web").restart_policy("Never").script(script);
    scene.run(&pod);
    wait_output(&scene, &["logs", "web"], "one\n");
    scene.sh(&pod, "touch /tmp/two");
    wait_output(&scene, &["logs", "web"], "one\ntwo\n");
    scene.sh(&pod, "touch /tmp/three");
    let mut following = BackgroundCommand::start(&scene, &["logs", "-f", "pod/web"]);
    following.wait_for("two\n");
    assert!(following.is_running());
    scene.sh(&pod, "touch /tmp/end");
    assert_eq!(following.wait().code(), Some(0));
    assert_eq!(following.text(), "one\ntwo\nth ree\nend\n");
    scene.crustlet.wait_pod("web", "Succeeded");
    wait_output(&scene, &["logs", "web"], "one\ntwo\nth ree\nend\n");
    // The log of an ended container is printed without waiting.
    let run = scene.crustlet.cli(&["logs", "-f", "web"]).success();
    assert_eq!(run.stdout, "one\ntwo\nth ree\nend\n");
    let message = failure_message(&scene, &["logs", "-p", "web"]);
    assert_eq!(
        message,
        "Pod default/web: the container has no previous run"
    );
    scene.end(&pod);
}

#[test]
fn it_prints_the_log_of_the_previous_run() {
    let scene = scene();
    let pod = microvm("web")
        .volume("scratch", "emptyDir: {}")
        .mount("scratch", "/scratch");
    let pod = pod.script("if test -e /scratch/run; then echo second; exec sleep 2147483647; fi; touch /scratch/run; echo first; exit 1");
    let pod = pod.add_container("other", "echo other; exec sleep 2147483647", &[]);
    scene.apply_pod(&pod);
    wait_output(&scene, &["logs", "web"], "second\n");
    assert_eq!(
        scene.crustlet.cli(&["logs", "web", "-p"]).success().stdout,
        "first\n"
    );
    wait_output(&scene, &["logs", "web", "-c", "other"], "other\n");
    // The previous run's log is still found after a restart of the agent.
    scene.crustlet.restart(&[]);
    wait_output(&scene, &["logs", "web", "-p", "-c", "app"], "first\n");
    let refused = |arguments: &[&str]| failure_message(&scene, &[&["logs"], arguments].concat());
    assert_eq!(
        refused(&["web", "-c", "nope"]),
        "Pod default/web has no container \"nope\""
    );
    assert_eq!(refused(&["nope"]), "Pod default/nope not found");
    assert_eq!(refused(&["web", "-n", "shop"]), "Pod shop/web not found");
    assert_eq!(
        refused(&["pvc/web"]),
        "\"pvc/web\" is not a pod; only pods have containers"
    );
    scene.end(&pod);
    let waits = microvm("waits").claim("missing").mount("missing", "/data");
    scene.apply_pod(&waits);
    scene.crustlet.wait_event("pod/waits", "FailedMount");
    let expected = "Pod default/waits: container \"app\" has not been started yet; hint: see its events: crustlet events pod/waits";
    assert_eq!(refused(&["waits"]), expected);
}

//! `crustlet exec`

use super::{failure_message, scene};
use crate::scene::microvm;

#[test]
fn it_passes_on_output_and_exit_code() {
    let scene = scene();
    let pod =
        microvm("web").add_container("other", "echo x > /tmp/other; exec sleep 2147483647", &[]);
    scene.run(&pod);
    let exec = |arguments: &[&str]| scene.crustlet.cli(&[&["exec"], arguments].concat());
    let run = exec(&["web", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!(
        (run.status.code(), run.stdout.as_str(), run.stderr.as_str()),
        (Some(3), "out\n", "err\n")
    );
    // Arguments arrive unchanged.
    let run = exec(&["pod/web", "--", "echo", "a  b", "$HOME", "-n", "--socket=x"]).success();
    assert_eq!(run.stdout, "a  b $HOME -n --socket=x\n");
    scene.crustlet.wait("the other container to write", || {
        exec(&["web", "-c", "other", "--", "cat", "/tmp/other"]).stdout == "x\n"
    });
    // The output is larger than gRPC's default limit for one message.
    let run = exec(&["web", "--", "sh", "-c", "busybox seq 1 1000000"]).success();
    assert_eq!(run.stdout.len(), 6_888_896);
    let run = exec(&["web", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(run.status.code(), Some(137), "{run}");

    let refused = |arguments: &[&str]| failure_message(&scene, &[&["exec"], arguments].concat());
    let message = refused(&["web", "--", "nope"]);
    assert!(
        message.starts_with("Pod default/web: ExecSync") && message.contains("nope"),
        "{message}"
    );
    assert_eq!(
        refused(&["nope", "--", "true"]),
        "Pod default/nope not found"
    );
    assert_eq!(
        refused(&["web", "-c", "nope", "--", "true"]),
        "Pod default/web has no container \"nope\""
    );
    let interactive = "exec supports neither standard input nor a terminal, because the CRI's ExecSync doesn't; hint: leave out -i and -t";
    assert_eq!(refused(&["-it", "web", "--", "sh"]), interactive);
    let message = refused(&["web", "--timeout=1s", "--", "sleep", "1000"]);
    assert!(
        message.starts_with("Pod default/web: ExecSync"),
        "{message}"
    );
    let usage = exec(&["web"]).failure();
    assert_eq!(usage.status.code(), Some(2), "{usage}");

    let ended = microvm("ended").restart_policy("Never").script("true");
    scene.apply_pod(&ended);
    scene.crustlet.wait_pod("ended", "Succeeded");
    assert_eq!(
        refused(&["ended", "--", "true"]),
        "Pod default/ended: the container is not running"
    );
}

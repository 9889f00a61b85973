//! Arguments and files that `crustlet serve` refuses, and commands without an agent.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use runcrust_tests::Run;
use runcrust_tests::node::utf8;

use super::{COMMAND_TIMEOUT, failure_message, scene};
use crate::scene::{Scene, microvm};

/// Starts one more agent, which has to end by itself with an error.
#[track_caller]
fn start_second_agent(scene: &Scene, arguments: &[&str]) -> Run {
    let ended = Run::capture_within(&mut scene.crustlet.command(arguments), COMMAND_TIMEOUT);
    ended.expect("the agent refuses to start").failure()
}

#[test]
fn refuses_a_root_directory_of_an_agent_or_a_kubelet() {
    let scene = scene();
    let other = format!("--listen={}", scene.node.dir().join("other").display());
    let metrics = "--metrics-address=127.0.0.1:0";
    let root = scene.crustlet.root().display();
    let run = start_second_agent(&scene, &[&other, metrics]);
    assert!(
        run.stderr.contains(&format!(
            "--root-dir {root}: another crustlet is using the directory"
        )),
        "{run}"
    );

    let kubelets = scene.node.dir().join("kubelets");
    fs::create_dir_all(kubelets.join("pods/uid/volumes")).unwrap();
    let at = format!("--root-dir={}", utf8(&kubelets));
    let run = start_second_agent(&scene, &[&at, &other, metrics]);
    let expected = format!(
        "--root-dir {}: the directory contains pods, volumes or claims but no crustlet.lock, so their owner is unknown; hint: ",
        utf8(&kubelets)
    );
    assert!(run.stderr.contains(&expected), "{run}");
    fs::write(kubelets.join("cpu_manager_state"), "{}").unwrap();
    let run = start_second_agent(&scene, &[&at, &other, metrics]);
    let expected = format!(
        "--root-dir {}: the directory belongs to a kubelet (it contains cpu_manager_state), whose files crustlet would remove; hint: use a directory of crustlet's own and list it in runcrust's kubelet_dirs",
        utf8(&kubelets)
    );
    assert!(run.stderr.contains(&expected), "{run}");
    assert!(kubelets.join("pods/uid/volumes").exists());

    // The first agent's socket is refused as well.
    let own_root = format!("--root-dir={}", scene.node.dir().join("own").display());
    let run = start_second_agent(&scene, &[&own_root, metrics]);
    assert!(run.stderr.contains(utf8(scene.crustlet.socket())), "{run}");
    scene.run(&microvm("web"));
}

#[test]
fn refuses_invalid_arguments() {
    let scene = scene();
    for (argument, message) in [
        ("--metrics-address=0.0.0.0:9100", "not a loopback address"),
        ("--metrics-address=[::]:9100", "not a loopback address"),
        ("--csi=nobody", "expected NAME=unix:///PATH"),
        (
            "--feature-gates=Unknown=true",
            "unrecognized feature gate \"Unknown\"; hint: use RuntimeAssistedMount or NewVolumeManagerReconstruction",
        ),
        ("--root-dir=here", "must be an absolute path"),
        ("--volume-stats-agg-period=0", "the value must be 1 or more"),
    ] {
        let run = start_second_agent(&scene, &[argument]);
        assert_eq!(run.status.code(), Some(2), "{run}");
        assert!(run.stderr.contains(message), "{run}");
    }
}

#[test]
fn refuses_an_invalid_admission_policy() {
    let scene = scene();
    scene.crustlet.kill();
    let file = scene.node.dir().join("policy.yaml");
    let argument = format!("--admission-policy={}", utf8(&file));
    let refused = |message: &str| {
        let run = start_second_agent(&scene, &[&argument]);
        assert_eq!(run.status.code(), Some(1), "{run}");
        let last = run.stderr.lines().next_back().unwrap_or_default();
        assert!(
            last.contains(utf8(&file)) && last.contains(message),
            "{run}"
        );
    };
    refused("No such file");
    for (text, message) in [
        ("kind: [", "line 1"),
        (
            "apiVersion: v1\nkind: DeferPolicy\nrules: []\n",
            "apiVersion",
        ),
        (
            "apiVersion: crustlet.crust.dev/v1alpha1\nkind: DeferPolicy\nrules: [{storageClas: a}]\n",
            "storageClas",
        ),
    ] {
        fs::write(&file, text).unwrap();
        refused(message);
    }
    fs::write(
        &file,
        "apiVersion: crustlet.crust.dev/v1alpha1\nkind: DeferPolicy\nrules: []\n",
    )
    .unwrap();
    scene.crustlet.spawn(scene.crustlet.command(&[&argument]));
}

#[test]
fn commands_without_an_agent_say_how_to_start_it() {
    let scene = scene();
    scene.crustlet.kill();
    let socket = utf8(scene.crustlet.socket());
    for arguments in [
        &["get", "pods"][..],
        &["events"],
        &["logs", "web"],
        &["exec", "web", "--", "true"],
        &["delete", "pod", "web"],
        &["run", "/dev/null"],
    ] {
        let message = failure_message(&scene, arguments);
        let start = format!("cannot connect to the agent at {socket}: ");
        let hint =
            "; hint: check that `crustlet serve` is running and listens on this socket (--socket)";
        assert!(
            message.starts_with(&start) && message.ends_with(hint),
            "{message}"
        );
    }
}

/// The agent reads the manifests before it accepts the first call.
#[test]
fn manifests_are_known_before_the_first_call() {
    let scene = scene();
    let pod = microvm("web");
    scene.run(&pod);
    for _ in 0..5 {
        scene.crustlet.restart(&[]);
        let run = scene
            .crustlet
            .cli(&["get", "pod", "web", "-o", "name"])
            .success();
        assert_eq!(run.stdout, "pod/web\n");
    }
    scene.crustlet.restart(&[]);
    let _ = scene.crustlet.cli(&["delete", "pod", "web"]).success();
    assert!(!scene.crustlet.pod_dir(&pod.uid()).exists());
}

#[test]
fn an_invalid_manifest_is_logged_once_and_others_apply() {
    let scene = scene();
    let (one, two) = (microvm("one"), microvm("two"));
    // The agent ends unwanted pods only after it has read all manifests successfully once. Therefore the first pod runs
    // before the invalid manifests are written.
    scene.run(&one);
    let wrong = "apiVersion: v1\nkind: Pod\nmetadata: {name: wrong}\nspec:\n  containers: {}\n";
    scene.crustlet.write("a-wrong", wrong);
    scene.crustlet.write(
        "b-broken",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n",
    );
    scene.run(&two);
    scene.end(&one);
    let log = scene.crustlet.log();
    let about = |name: &str| {
        let file = scene.crustlet.manifest(name);
        let lines = log.lines().filter(|line| line.contains(utf8(&file)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (about_wrong, about_broken) = (about("a-wrong"), about("b-broken"));
    assert!(
        about_wrong.len() == 1 && about_wrong[0].contains("document 1: Pod default/wrong: "),
        "{about_wrong:?}"
    );
    assert!(about_wrong[0].contains("containers"), "{about_wrong:?}");
    assert!(
        about_broken.len() == 1 && about_broken[0].contains("line 3"),
        "{about_broken:?}"
    );

    // A pod keeps running unchanged when its file becomes unreadable.
    let container = scene.container(&two);
    scene.crustlet.write("two", "apiVersion: v1\nkind: [");
    let later = microvm("later");
    scene.run(&later);
    assert_eq!(scene.container(&two), container);
    assert!(
        scene
            .crustlet
            .log()
            .contains(utf8(&scene.crustlet.manifest("two")))
    );
    // After a restart the agent cannot know what the file contained, so it ends no pod that may be wanted.
    let later_container = scene.container(&later);
    scene.crustlet.restart(&[]);
    scene.crustlet.remove("later");
    scene
        .crustlet
        .wait("the agent to notice that the manifest is gone", || {
            let pods = scene.crustlet.all("pods");
            let mut later = pods
                .iter()
                .filter(|it| it["metadata"]["uid"] == later.uid());
            later.any(|it| it["metadata"]["deletionTimestamp"].is_string())
        });
    let both = [&later, &two].map(|pod| scene.container(pod));
    assert_eq!(both, [later_container, container.clone()]);
    scene.apply_pod(&two);
    for name in ["a-wrong", "b-broken"] {
        scene.crustlet.remove(name);
    }
    scene.crustlet.wait_gone(&later.uid());
    assert_eq!(scene.container(&two), container);
    scene.end(&two);
    scene.assert_nothing_left(&[]);
}

#[test]
fn a_manifest_that_others_can_write_is_ignored() {
    let scene = scene();
    let pod = microvm("web");
    let file = scene.crustlet.manifest("web");
    let mode = |mode: u32| fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    let assert_refused = |what: &str| {
        scene.crustlet.wait("the agent to log the refusal", || {
            let log = scene.crustlet.log();
            log.lines()
                .any(|line| line.contains(what) && line.contains("chmod go-w"))
        });
        assert!(!scene.crustlet.has("pod", "web"));
    };
    let start_second_agent = file.with_file_name(".web");
    fs::write(&start_second_agent, pod.to_string()).unwrap();
    fs::set_permissions(&start_second_agent, Permissions::from_mode(0o664)).unwrap();
    fs::rename(&start_second_agent, &file).unwrap();
    assert_refused("web.yaml can be written by others than root; hint: ");
    mode(0o644);
    scene.crustlet.wait_pod("web", "Running");
    // If the manifest was read before, its last accepted contents count.
    let container = scene.container(&pod);
    mode(0o646);
    let later = microvm("later");
    scene.run(&later);
    assert_eq!(scene.container(&pod), container);

    // A directory that others can write is refused as well.
    mode(0o644);
    scene.end(&later);
    scene.end(&pod);
    let directory = file.parent().unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    scene.apply_pod(&pod);
    assert_refused("manifests can be written by others than root; hint: ");
    let web = super::write_file(&scene, "other.yaml", &microvm("other").to_string());
    let refused = failure_message(&scene, &["run", &web]);
    assert!(
        refused
            .contains("can be written by others than root; hint: let only root own and write to"),
        "{refused}"
    );
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    scene.crustlet.wait_pod("web", "Running");
    scene.end(&pod);
    scene.assert_nothing_left(&[]);
}

//! What `crustlet serve` doesn't start with, and commands without it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use runcrust_tests::Run;
use runcrust_tests::node::utf8;

use super::{PATIENCE, complaint, scene};
use crate::scene::{Scene, microvm};

/// One more agent, which has to end by itself.
#[track_caller]
fn beside(scene: &Scene, arguments: &[&str]) -> Run {
    let ended = Run::within(&mut scene.crustlet.command(arguments), PATIENCE);
    ended
        .expect("it serves, and should have refused to")
        .failure()
}

#[test]
fn a_root_directory_is_one_agents_and_no_kubelets() {
    let scene = scene();
    let other = format!("--listen={}", scene.node.dir().join("other").display());
    let metrics = "--metrics-address=127.0.0.1:0";
    let root = scene.crustlet.root().display();
    let run = beside(&scene, &[&other, metrics]);
    assert!(
        run.stderr.contains(&format!(
            "--root-dir {root}: another crustlet is using the directory"
        )),
        "{run}"
    );

    let kubelets = scene.node.dir().join("kubelets");
    fs::create_dir_all(kubelets.join("pods/uid/volumes")).unwrap();
    let at = format!("--root-dir={}", utf8(&kubelets));
    let run = beside(&scene, &[&at, &other, metrics]);
    let expected = format!(
        "--root-dir {}: the directory contains pods, volumes or claims but no crustlet.lock, so their owner is unknown; hint: ",
        utf8(&kubelets)
    );
    assert!(run.stderr.contains(&expected), "{run}");
    fs::write(kubelets.join("cpu_manager_state"), "{}").unwrap();
    let run = beside(&scene, &[&at, &other, metrics]);
    let expected = format!(
        "--root-dir {}: the directory belongs to a kubelet (it contains cpu_manager_state), whose files crustlet would remove; hint: use a directory of crustlet's own and list it in runcrust's kubelet_dirs",
        utf8(&kubelets)
    );
    assert!(run.stderr.contains(&expected), "{run}");
    assert!(kubelets.join("pods/uid/volumes").exists());

    // Its socket is the first one's, too.
    let own = format!("--root-dir={}", scene.node.dir().join("own").display());
    let run = beside(&scene, &[&own, metrics]);
    assert!(run.stderr.contains(utf8(scene.crustlet.socket())), "{run}");
    scene.run(&microvm("web"));
}

#[test]
fn a_command_line_that_means_nothing_starts_nothing() {
    let scene = scene();
    for (argument, told) in [
        ("--metrics-address=0.0.0.0:9100", "not a loopback address"),
        ("--metrics-address=[::]:9100", "not a loopback address"),
        ("--csi=nobody", "expected NAME=unix:///PATH"),
        (
            "--feature-gates=Unknown=true",
            "unrecognized feature gate \"Unknown\"; hint: crustlet has RuntimeAssistedMount, NewVolumeManagerReconstruction",
        ),
        ("--root-dir=here", "must be an absolute path"),
        ("--volume-stats-agg-period=0", "the value must be 1 or more"),
    ] {
        let run = beside(&scene, &[argument]);
        assert_eq!(run.status.code(), Some(2), "{run}");
        assert!(run.stderr.contains(told), "{run}");
    }
}

#[test]
fn a_policy_that_is_none_starts_nothing() {
    let scene = scene();
    scene.crustlet.kill();
    let file = scene.node.dir().join("policy.yaml");
    let argument = format!("--admission-policy={}", utf8(&file));
    let refused = |told: &str| {
        let run = beside(&scene, &[&argument]);
        assert_eq!(run.status.code(), Some(1), "{run}");
        let last = run.stderr.lines().next_back().unwrap_or_default();
        assert!(last.contains(utf8(&file)) && last.contains(told), "{run}");
    };
    refused("No such file");
    for (text, told) in [
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
        refused(told);
    }
    fs::write(
        &file,
        "apiVersion: crustlet.crust.dev/v1alpha1\nkind: DeferPolicy\nrules: []\n",
    )
    .unwrap();
    scene.crustlet.spawn(scene.crustlet.command(&[&argument]));
}

#[test]
fn without_an_agent_it_is_said_what_to_start() {
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
        let told = complaint(&scene, arguments);
        let start = format!("cannot connect to the agent at {socket}: ");
        let hint =
            "; hint: check that `crustlet serve` is running and listens on this socket (--socket)";
        assert!(told.starts_with(&start) && told.ends_with(hint), "{told}");
    }
}

/// It has what is written when it begins to answer.
#[test]
fn who_asks_first_after_a_start_is_told_of_what_is_written() {
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
fn a_manifest_that_is_wrong_is_told_once_and_the_others_go_on() {
    let scene = scene();
    let (one, two) = (microvm("one"), microvm("two"));
    // All that is wanted was known once: until then nothing would be ended.
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
    let (of_wrong, of_broken) = (about("a-wrong"), about("b-broken"));
    assert!(
        of_wrong.len() == 1 && of_wrong[0].contains("document 1: Pod default/wrong: "),
        "{of_wrong:?}"
    );
    assert!(of_wrong[0].contains("containers"), "{of_wrong:?}");
    assert!(
        of_broken.len() == 1 && of_broken[0].contains("line 3"),
        "{of_broken:?}"
    );

    // A pod whose file can't be read any more goes on, as it was.
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
    // After a restart nobody knows what it was: nothing is ended that may be wanted.
    let later_container = scene.container(&later);
    scene.crustlet.restart(&[]);
    scene.crustlet.remove("later");
    scene
        .crustlet
        .wait("it to be seen that its manifest is gone", || {
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
fn a_manifest_that_others_can_write_is_none() {
    let scene = scene();
    let pod = microvm("web");
    let file = scene.crustlet.manifest("web");
    let mode = |mode: u32| fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    let told = |what: &str| {
        scene.crustlet.wait("it to be told", || {
            let log = scene.crustlet.log();
            log.lines()
                .any(|line| line.contains(what) && line.contains("chmod go-w"))
        });
        assert!(!scene.crustlet.has("pod", "web"));
    };
    let beside = file.with_file_name(".web");
    fs::write(&beside, pod.to_string()).unwrap();
    fs::set_permissions(&beside, Permissions::from_mode(0o664)).unwrap();
    fs::rename(&beside, &file).unwrap();
    told("web.yaml can be written by others than root; hint: ");
    mode(0o644);
    scene.crustlet.wait_pod("web", "Running");
    // Of one that was, what it said counts.
    let container = scene.container(&pod);
    mode(0o646);
    let later = microvm("later");
    scene.run(&later);
    assert_eq!(scene.container(&pod), container);

    // Nor is a directory.
    mode(0o644);
    scene.end(&later);
    scene.end(&pod);
    let directory = file.parent().unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    scene.apply_pod(&pod);
    told("manifests can be written by others than root; hint: ");
    let web = super::file(&scene, "other.yaml", &microvm("other").to_string());
    let refused = complaint(&scene, &["run", &web]);
    assert!(
        refused.contains("can be written by others than root; hint: manifests are run as root"),
        "{refused}"
    );
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    scene.crustlet.wait_pod("web", "Running");
    scene.end(&pod);
    scene.assert_nothing_left(&[]);
}

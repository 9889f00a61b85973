//! Containers and sandboxes that end, and how they are restarted.

use std::fs;

use crust_proto::csi::v1::NodePublishVolumeRequest;
use runcrust_tests::on_each_delegate;
use runcrust_tests::process::kill_and_wait;
use serde_json::Value;

use crate::scene::{Scene, microvm};

/// Returns the status of a container from its pod's `list`: `containerStatuses` or `initContainerStatuses`.
fn status_of(scene: &Scene, pod: &str, list: &str, container: &str) -> Value {
    let mut status = scene.crustlet.pod(pod)["status"].take();
    let all = status[list]
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let mut found = all.into_iter().filter(|it| it["name"] == container);
    found.next().unwrap_or_default()
}

on_each_delegate! {
    fn init_containers_run_first_and_one_after_the_other(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let mounts = [("data", "/data")];
        // The second init container fails once.
        let second = "cat /data/first; echo second >> /data/first; test $(wc -l < /data/first) = 3";
        let pod = microvm("web").deferred("data").mount("data", "/data");
        let pod = pod.init("one", "echo one > /data/first", &mounts).init("two", second, &mounts);
        scene.run(&pod);
        assert_eq!(scene.sh(&pod, "cat /data/first"), "one\nsecond\nsecond");
        scene.assert_deferred(&pod, &data);
        let init = |name: &str| status_of(&scene, "web", "initContainerStatuses", name);
        assert_eq!((&init("one")["restartCount"], &init("two")["restartCount"]), (&0.into(), &1.into()));
        assert_eq!(init("two")["state"]["terminated"]["reason"], "Completed");
        scene.end(&pod);

        let failing = microvm("failing").restart_policy("Never").deferred("data").mount("data", "/data");
        let failing = failing.init("one", "echo why >&2; exit 7", &mounts);
        scene.apply_pod(&failing);
        scene.crustlet.wait_pod("failing", "Failed");
        let one = status_of(&scene, "failing", "initContainerStatuses", "one");
        assert_eq!(one["state"]["terminated"]["exitCode"], 7, "{one}");
        let app = status_of(&scene, "failing", "containerStatuses", "app");
        assert_eq!(app["state"]["waiting"]["reason"], "PodInitializing", "{app}");
        // The volume has no user any more, although the pod still exists.
        scene.crustlet.wait("the volume to be unstaged", || scene.crustlet.all("volumes").is_empty());
        assert_eq!(scene.crustlet.cli(&["logs", "failing", "-c", "one"]).success().stdout, "why\n");
        scene.end(&failing);
        scene.assert_nothing_left(&[&data]);
    }

    fn a_failing_container_is_restarted_with_back_off(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let once = "echo run >> /data/runs; test $(wc -l < /data/runs) = 2";
        let pod = microvm("once").restart_policy("OnFailure").deferred("data");
        let pod = pod.mount("data", "/data").script(once);
        scene.apply_pod(&pod);
        let looping = microvm("looping").restart_policy("OnFailure").deferred("logs");
        let looping = looping.mount("logs", "/data").script("echo run >> /data/runs; exit 3");
        scene.apply_pod(&looping);

        scene.crustlet.wait_pod("once", "Succeeded");
        let app = status_of(&scene, "once", "containerStatuses", "app");
        assert_eq!((&app["restartCount"], &app["ready"]), (&1.into(), &false.into()), "{app}");
        assert_eq!(app["state"]["terminated"]["reason"], "Completed", "{app}");
        scene.crustlet.wait("its volume to be unstaged", || scene.csi.devices(&data.volume.id).is_empty());
        let runs = scene.inspect(&data, |root| fs::read_to_string(root.join("runs")).unwrap());
        assert_eq!(runs, "run\nrun\n");

        scene.crustlet.wait_event("pod/looping", "BackOff");
        let app = status_of(&scene, "looping", "containerStatuses", "app");
        assert_eq!(app["state"]["waiting"]["reason"], "CrashLoopBackOff", "{app}");
        assert_eq!(app["lastState"]["terminated"]["exitCode"], 3, "{app}");
        assert_eq!(scene.crustlet.pod("looping")["status"]["phase"], "Running");
        let table = scene.crustlet.cli(&["get", "pod", "looping", "--no-headers"]).success().stdout;
        assert!(table.starts_with("looping   0/1   CrashLoopBackOff   1 ("), "{table}");
        // A restart of the agent does not reset the back-off.
        scene.crustlet.restart(&[]);
        scene.crustlet.wait("the container to be in back-off still", || {
            let app = status_of(&scene, "looping", "containerStatuses", "app");
            app["state"]["waiting"]["reason"] == "CrashLoopBackOff" && app["restartCount"] == 1
        });
        scene.end(&looping);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
    }

    fn a_killed_container_comes_back_beside_another(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "xfs");
        let work = "echo run >> /part/runs; exec sleep 2147483647";
        let pod = microvm("web").deferred("data").mount("data", "/data");
        let pod = pod.add_container("other", work, &[("data", "/part")]);
        scene.run(&pod);
        scene.crustlet.wait("both to run", || scene.running(&pod).len() == 2);
        let (app, other) = (scene.container_named(&pod, "app"), scene.container_named(&pod, "other"));
        let mounted = scene.mount_info(&pod, &data.pv);
        let runs = || scene.cri().sh(&app, "cat /data/runs 2>/dev/null || true");
        scene.crustlet.wait("the container to write", || runs() == "run");
        kill_and_wait(scene.cri().pid(&other).unwrap());
        scene.crustlet.wait("the container to be restarted", || {
            status_of(&scene, "web", "containerStatuses", "other")["restartCount"] == 1
        });
        scene.crustlet.wait("the container to write again", || runs() == "run\nrun");
        assert_eq!(scene.container_named(&pod, "app"), app, "the other container is left alone");
        assert_eq!(scene.mount_info(&pod, &data.pv), mounted);
        scene.assert_deferred(&pod, &data);
        scene.end(&pod);
        scene.assert_nothing_left(&[&data]);
    }

    /// The pod and its volumes are the same, so no volume is published again.
    fn a_killed_sandbox_comes_back_with_its_volumes(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (data, logs) = (scene.claim("data", "ext4"), scene.claim("logs", "ext4"));
        let pod = microvm("web").fs_group(2000).deferred("data").claim("logs");
        let pod = pod.mount_as("data", "/data", "subPath: a").mount_as("logs", "/logs", "subPath: b");
        scene.run(&pod);
        scene.sh(&pod, "echo kept > /data/file; echo kept > /logs/file");
        let [before] = &scene.sandboxes(&pod)[..] else { panic!() };
        let container = scene.container(&pod);
        scene.relay.clear_requests();
        kill_and_wait(scene.cri().pod_pid(before).unwrap());
        scene.crustlet.wait_event("pod/web", "SandboxChanged");
        scene.crustlet.wait("another container to run", || {
            let running = scene.running(&pod);
            running.len() == 1 && running[0] != container
        });
        let script = "cat /data/file /logs/file; stat -c %g /data";
        assert_eq!(scene.sh(&pod, script), "kept\nkept\n2000");
        let [after] = &scene.sandboxes(&pod)[..] else { panic!() };
        assert_ne!(before, after);
        scene.assert_deferred(&pod, &data);
        assert_eq!(scene.relay.requests::<NodePublishVolumeRequest>(), []);
        let app = status_of(&scene, "web", "containerStatuses", "app");
        assert_eq!(app["restartCount"], 1, "{app}");
        scene.end(&pod);
        scene.assert_nothing_left(&[&data, &logs]);
    }
}

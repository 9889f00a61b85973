//! The daemon stops or is killed, and starts again.

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Engine as _, on_each_delegate, process, wait_until};
use serde_json::json;

use crate::scene::Scene;

const STATUS: &str = "{{.State.Status}}";

on_each_delegate! {
    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn with_live_restore_containers_outlive_the_daemon(delegate: Delegate) {
        let scene = Scene::with(delegate, json!({"live-restore": true}));
        let Scene { docker, device, node, target } = &scene;
        let volume = scene.volume();
        let _ = docker.start_container("one", &[&volume]).success();
        let _ = docker.sh("one", "echo hello > /data/file");
        let pid: i32 = docker.inspect("one", "{{.State.Pid}}").parse().unwrap();
        for end in [runcrust_tests::Docker::kill, runcrust_tests::Docker::stop] {
            end(docker);
            assert!(process::is_alive(pid));
            let _ = node.stats(target).success();
            let _ = node.unstage(target).failure();
            docker.start_daemon();
            assert_eq!(docker.inspect("one", STATUS), "running");
            assert_eq!(docker.sh("one", "cat /data/file"), "hello");
        }
        // A container that ends while no daemon runs.
        docker.kill();
        process::kill_and_wait(pid);
        device.wait_until_free(WAIT_TIMEOUT);
        docker.start_daemon();
        docker.wait_until("one", STATUS, "exited");
        let _ = docker.run(&["start", "one"]).success();
        assert_eq!(docker.sh("one", "cat /data/file"), "hello");
        // A container whose shim is killed.
        let mut shims = docker.shims();
        wait_until("the container's previous shim to end", WAIT_TIMEOUT, || {
            shims = docker.shims();
            shims.len() == 1
        });
        process::kill_and_wait(shims[0]);
        docker.wait_until("one", STATUS, "exited");
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = docker.run(&["start", "one"]).success();
        assert_eq!(docker.sh("one", "cat /data/file"), "hello");
        scene.assert_nothing_on_the_host();
        scene.end(&["one"]);
    }

    #[ignore = "needs docker; runs in another Debian: make engines"]
    fn without_live_restore_containers_restart_with_the_daemon(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let Scene { docker, device, .. } = &scene;
        let flags = ["--restart=always", "--stop-signal=KILL", &scene.volume()];
        let _ = docker.start_container("one", &flags).success();
        let _ = docker.sh("one", "echo hello > /data/file");
        docker.stop();
        device.wait_until_free(WAIT_TIMEOUT);
        docker.start_daemon();
        docker.wait_until("one", STATUS, "running");
        docker.wait_for_content("one", "/data/file", "hello\n");
        // A killed daemon leaves its containers running, and the next daemon ends them first.
        let before = docker.inspect("one", "{{.State.Pid}}");
        docker.kill();
        docker.start_daemon();
        docker.wait_until("one", STATUS, "running");
        assert_ne!(docker.inspect("one", "{{.State.Pid}}"), before);
        // Retried, because the first exec once failed for an unknown reason: runc's init ended before it had read a
        // byte.
        docker.wait_for_content("one", "/data/file", "hello\n");
        assert_eq!(docker.sh("one", "stat -c %g /data"), "4242");
        scene.assert_nothing_on_the_host();
        scene.end(&["one"]);
    }
}

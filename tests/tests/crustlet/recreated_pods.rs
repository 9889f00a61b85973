//! A pod is removed and created again under its name.

use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, pod_with};

on_each_delegate! {
    /// The uid is derived from the name, so both pods have the same uid. The first pod and its volumes must end anyway.
    fn a_pod_recreated_while_it_terminates_starts_anew(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let data = scene.claim("data", "ext4");
        let sleep = "exec sleep 1000";
        let first = pod_with("web", "data", true).script(&format!("echo first > /data/file; echo 1; {sleep}"));
        scene.run(&first);
        scene.crustlet.wait("the first to write", || scene.crustlet.cli(&["logs", "web"]).stdout == "1\n");
        scene.crustlet.remove("web");
        scene.crustlet.wait_event("pod/web", "Killing");
        let second = pod_with("web", "data", true).script(&format!("cat /data/file; {sleep}"));
        scene.apply_pod(&second);
        scene.crustlet.wait("the second to read", || scene.crustlet.cli(&["logs", "web"]).stdout == "first\n");
        scene.assert_deferred(&second, &data);
        scene.end(&second);
        scene.assert_nothing_left(&[&data]);
    }
}

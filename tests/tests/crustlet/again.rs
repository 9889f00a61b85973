//! Pods of the same name, one after another.

use runcrust_tests::on_each_delegate;

use crate::scene::{Scene, pod_with};

on_each_delegate! {
    /// Its uid is made of its name, so it is the same: the first ends nevertheless, volumes and all.
    fn a_pod_that_is_written_again_while_it_ends_starts_anew(delegate: Delegate) {
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

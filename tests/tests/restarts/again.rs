//! Pods that are written again, and others in their place.

use std::fs;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{on_each_delegate, wait_until};

use crate::scene::{How, Scene, pod_with};

/// The uid of another pod of any name.
const OTHER: &str = "22222222-2222-3333-4444-555555555555";

fn with_other_uid(pod: &Pod) -> String {
    let text = pod.to_string();
    let other = text.replacen(&pod.uid(), OTHER, 1);
    assert_ne!(text, other);
    other
}

on_each_delegate! {
    fn a_pod_of_the_same_name_and_another_uid_replaces_the_first(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = pod_with("web", &storage, How::Deferred);
        for is_dead in [true, false] {
            scene.run(&pod);
            if is_dead {
                scene.crustlet.kill();
            }
            scene.crustlet.write("web", &with_other_uid(&pod));
            if is_dead {
                scene.start(&[]);
            }
            scene.crustlet.wait_gone(&pod.uid());
            scene.crustlet.wait("the other to run", || {
                let other = scene.crustlet.pod("web");
                other["metadata"]["uid"] == OTHER
                    && other["status"]["containerStatuses"][0]["state"]["running"].is_object()
            });
            assert_eq!(scene.cri().pods().expect("ListPodSandbox").len(), 1);
            assert!(!scene.target(&pod, &storage.pv).exists());
            scene.crustlet.remove("web");
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(How::Deferred);
        }
    }

    /// Its manifest says that it is to end, and then there is another one in that place, that doesn't.
    fn who_is_written_in_the_place_of_one_that_ends_comes_after_it(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let first = pod_with("web", &storage, How::Deferred);
        scene.run(&first);
        scene.runtime.hold("StopContainer", Moment::Before);
        scene.delete(&first);
        scene.runtime.wait_held();
        let second = Pod::new("web").script("echo second > /data/second; sync; exec sleep 1000000");
        let second = second.claim("data").mount("data", "/data");
        scene.apply_pod(&second);
        scene.wait_look();
        scene.runtime.clear_faults();
        scene.crustlet.wait("the second to run", || scene.runtime.count("RunPodSandbox") == 2);
        scene.wait_runs(&second);
        let wait = "until test -s /data/second; do :; done";
        assert_eq!(scene.sh(&second, &format!("{wait}; cat /data/second /data/begun-by-web")), "second\nbegun");
        scene.assert_there(&second, &storage, How::Plain);
        scene.end(&second);
        scene.assert_nothing_left(&[&storage]);
    }

    /// As by somebody who deletes it at that moment, too.
    fn a_deleted_manifest_that_reappears_is_removed_again(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let pod = Pod::new("web");
        scene.run(&pod);
        scene.delete(&pod);
        let file = scene.crustlet.manifest("web");
        wait_until("its manifest to go", WAIT_TIMEOUT, || !file.exists());
        scene.delete(&pod);
        scene.crustlet.wait("it to go again", || !file.exists());
        scene.crustlet.wait_gone(&pod.uid());
        scene.assert_nothing_left(&[]);
    }

    /// An uid is made of a name, so that it comes again.
    fn a_uid_that_comes_again_is_another_pods(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let once = Pod::new("web").script("echo once >> /data/once; sync").restart_policy("Never");
        let once = once.deferred("data").mount("data", "/data");
        for is_killed in [false, true, false] {
            scene.apply_pod(&once);
            scene.crustlet.wait_pod("web", "Succeeded");
            if is_killed {
                scene.restart();
                scene.crustlet.wait_pod("web", "Succeeded");
            }
            scene.end(&once);
        }
        let look = pod_with("look", &storage, How::Deferred);
        scene.run(&look);
        assert_eq!(scene.sh(&look, "cat /data/once"), "once\nonce\nonce");
        scene.end(&look);
        scene.assert_nothing_left(&[&storage]);
    }

    /// Which of two that say the same of themselves counts is the same whenever they are read.
    fn of_two_pods_with_one_uid_one_counts(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let first = pod_with("first", &storage, How::Deferred);
        scene.run(&first);
        let second = first.to_string().replacen("name: first", "name: second", 1);
        scene.crustlet.write("second", &second);
        scene.wait_look();
        scene.restart();
        scene.wait_look();
        assert_eq!(scene.begun(&first), 1);
        assert_eq!(scene.cri().pods().expect("ListPodSandbox").len(), 1);
        fs::remove_file(scene.crustlet.manifest("second")).expect("the second");
        scene.wait_look();
        assert_eq!(scene.begun(&first), 1);
        scene.end(&first);
        scene.assert_nothing_left(&[&storage]);
    }
}

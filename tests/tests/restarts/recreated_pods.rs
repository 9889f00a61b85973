//! Pods whose manifests are written again, and other pods with the same name or uid.

use std::fs;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{on_each_delegate, wait_until};

use crate::scene::{Mounting, Scene, pod_with};

/// The uid of another pod, whatever its name is.
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
        let pod = pod_with("web", &storage, Mounting::Deferred);
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
            scene.crustlet.wait("the other pod to run", || {
                let other = scene.crustlet.pod("web");
                other["metadata"]["uid"] == OTHER
                    && other["status"]["containerStatuses"][0]["state"]["running"].is_object()
            });
            assert_eq!(scene.cri().pods().expect("ListPodSandbox").len(), 1);
            assert!(!scene.target(&pod, &storage.pv).exists());
            scene.crustlet.remove("web");
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(Mounting::Deferred);
        }
    }

    /// The manifest of a pod that terminates is replaced by that of another pod.
    fn a_replaced_pod_starts_after_the_first_has_ended(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let first = pod_with("web", &storage, Mounting::Deferred);
        scene.run(&first);
        scene.runtime.hold("StopContainer", Moment::Before);
        scene.delete(&first);
        scene.runtime.wait_held();
        let second = Pod::new("web").script("echo second > /data/second; sync; exec sleep 1000000");
        let second = second.claim("data").mount("data", "/data");
        scene.apply_pod(&second);
        scene.wait_for_relist();
        scene.runtime.clear_faults();
        scene.crustlet.wait("the second pod to run", || scene.runtime.count("RunPodSandbox") == 2);
        scene.wait_running(&second);
        let wait = "until test -s /data/second; do :; done";
        assert_eq!(scene.sh(&second, &format!("{wait}; cat /data/second /data/begun-by-web")), "second\nbegun");
        scene.assert_mounted(&second, &storage, Mounting::Plain);
        scene.end(&second);
        scene.assert_nothing_left(&[&storage]);
    }

    /// A delete writes the manifest with a deletion timestamp. A second delete at the same time can therefore create
    /// the file again after the agent has removed it.
    fn a_deleted_manifest_that_reappears_is_removed_again(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let pod = Pod::new("web");
        scene.run(&pod);
        scene.delete(&pod);
        let file = scene.crustlet.manifest("web");
        wait_until("the manifest to be removed", WAIT_TIMEOUT, || !file.exists());
        scene.delete(&pod);
        scene.crustlet.wait("the manifest to be removed once more", || !file.exists());
        scene.crustlet.wait_gone(&pod.uid());
        scene.assert_nothing_left(&[]);
    }

    /// A uid is derived from the name, so a recreated pod has the same uid.
    fn a_recreated_pod_with_the_same_uid_runs_again(delegate: Delegate) {
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
        let reader = pod_with("look", &storage, Mounting::Deferred);
        scene.run(&reader);
        assert_eq!(scene.sh(&reader, "cat /data/once"), "once\nonce\nonce");
        scene.end(&reader);
        scene.assert_nothing_left(&[&storage]);
    }

    /// Which of two pods with one uid is accepted does not depend on the order in which they are read.
    fn one_of_two_pods_with_one_uid_is_accepted(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let first = pod_with("first", &storage, Mounting::Deferred);
        scene.run(&first);
        let second = first.to_string().replacen("name: first", "name: second", 1);
        scene.crustlet.write("second", &second);
        scene.wait_for_relist();
        scene.restart();
        scene.wait_for_relist();
        assert_eq!(scene.start_count(&first), 1);
        assert_eq!(scene.cri().pods().expect("ListPodSandbox").len(), 1);
        fs::remove_file(scene.crustlet.manifest("second")).expect("the second manifest");
        scene.wait_for_relist();
        assert_eq!(scene.start_count(&first), 1);
        scene.end(&first);
        scene.assert_nothing_left(&[&storage]);
    }
}

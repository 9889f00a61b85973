//! `NewVolumeManagerReconstruction=false`: what is wanted is known first, and then the disk is looked at (KEP-3756,
//! "Old `VolumeManager` startup").

use runcrust_tests::{Delegate, on_each_delegate};

use crate::scene::{Counted, How, Scene, pod_with};

const OLD: &str = "--feature-gates=NewVolumeManagerReconstruction=false";

on_each_delegate! {
    /// What is wanted isn't looked for on the disk, and isn't known before it is mounted once more; which its driver
    /// doesn't do here until the pod is gone. kubelet has a workaround for it:
    /// <https://github.com/kubernetes/kubernetes/pull/110670>.
    fn the_old_order_leaves_a_volume_behind_when_its_pod_goes(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let how = match delegate {
            Delegate::Runc => How::Deferred,
            Delegate::Crun => How::Plain,
        };
        for gate in [&[][..], &[OLD]] {
            let is_old = !gate.is_empty();
            let pod = pod_with(&format!("pod-{is_old}-{how}"), &storage, how);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.csi.kill();
            scene.clear_requests();
            scene.start(gate);
            scene.crustlet.wait_event_containing(&format!("pod/{}", pod.name()), "FailedMount", "NodeGetCapabilities");
            scene.wait_look();
            scene.crustlet.remove(pod.name());
            scene.crustlet.wait("its processes to end", || scene.sandboxes(&pod).is_empty());
            let found = Counted { reconstructed: 2, ..Counted::default() };
            if is_old {
                scene.crustlet.wait("an orphan to be counted", || scene.counted().orphans == 1);
                scene.csi.spawn(scene.csi.command(&[]));
                scene.wait_look();
                assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "nobody is asked");
                assert_eq!(scene.counted(), Counted { orphans: 1, ..Counted::default() });
                assert!(scene.crustlet.pod_dir(&pod.uid()).exists());
                // The next one finds it, for nobody wants it.
                scene.crustlet.kill();
                scene.start(gate);
            } else {
                scene.csi.spawn(scene.csi.command(&[]));
            }
            scene.assert_nothing_left(&[&storage]);
            assert_eq!(scene.counted(), found);
            scene.assert_unpublished(how);
        }
    }

    /// What is done in either order: volumes of pods that went meanwhile are found, and only these in the old one.
    fn what_is_not_wanted_is_found_in_either_order(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (kept, gone) = (scene.claim("kept"), scene.claim("gone"));
        let stays = pod_with("stays", &kept, How::Deferred);
        scene.run(&stays);
        let container = scene.container(&stays);
        for (gate, reconstructed) in [(&[OLD][..], 2), (&[], 4)] {
            let goes = pod_with("goes", &gone, How::Plain);
            scene.run(&goes);
            scene.crustlet.kill();
            scene.crustlet.remove("goes");
            scene.clear_requests();
            scene.start(gate);
            scene.crustlet.wait_gone(&goes.uid());
            scene.wait_measured(&[&kept]);
            assert_eq!(scene.counted(), Counted { reconstructed, ..Counted::default() });
            assert_eq!(scene.container(&stays), container);
            scene.assert_unpublished(How::Plain);
        }
        scene.end(&stays);
        scene.assert_nothing_left(&[&kept, &gone]);
    }
}

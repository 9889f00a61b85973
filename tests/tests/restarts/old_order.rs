//! `NewVolumeManagerReconstruction=false`: the desired state is built first, and volumes on the disk are reconstructed
//! afterwards (KEP-3756, "Old `VolumeManager` startup").

use runcrust_tests::{Delegate, on_each_delegate};

use crate::scene::{Counters, Mounting, Scene, pod_with};

const OLD: &str = "--feature-gates=NewVolumeManagerReconstruction=false";

on_each_delegate! {
    /// The old order does not reconstruct wanted volumes. They are unknown until they are mounted again, and here the
    /// driver does not run until the pod is gone. kubelet has a workaround:
    /// <https://github.com/kubernetes/kubernetes/pull/110670>.
    fn the_old_order_leaves_a_volume_behind_when_its_pod_goes(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let mounting = match delegate {
            Delegate::Runc => Mounting::Deferred,
            Delegate::Crun => Mounting::Plain,
        };
        for gate in [&[][..], &[OLD]] {
            let is_old = !gate.is_empty();
            let pod = pod_with(&format!("pod-{is_old}-{mounting}"), &storage, mounting);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.csi.kill();
            scene.clear_requests();
            scene.start(gate);
            scene.crustlet.wait_event_containing(&format!("pod/{}", pod.name()), "FailedMount", "NodeGetCapabilities");
            scene.wait_for_relist();
            scene.crustlet.remove(pod.name());
            scene.crustlet.wait("the pod's sandbox to end", || scene.sandboxes(&pod).is_empty());
            let found = Counters { reconstructed: 2, ..Counters::default() };
            if is_old {
                scene.crustlet.wait("an orphan to be counted", || scene.counters().orphans == 1);
                scene.csi.spawn(scene.csi.command(&[]));
                scene.wait_for_relist();
                assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "no driver is called");
                assert_eq!(scene.counters(), Counters { orphans: 1, ..Counters::default() });
                assert!(scene.crustlet.pod_dir(&pod.uid()).exists());
                // The next agent finds the volume, because no pod wants it.
                scene.crustlet.kill();
                scene.start(gate);
            } else {
                scene.csi.spawn(scene.csi.command(&[]));
            }
            scene.assert_nothing_left(&[&storage]);
            assert_eq!(scene.counters(), found);
            scene.assert_unpublished(mounting);
        }
    }

    /// Both orders find the volumes of pods that were removed in the meantime. The old order finds no other volumes.
    fn unwanted_volumes_are_found_in_either_order(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (kept, gone) = (scene.claim("kept"), scene.claim("gone"));
        let stays = pod_with("stays", &kept, Mounting::Deferred);
        scene.run(&stays);
        let container = scene.container(&stays);
        for (gate, reconstructed) in [(&[OLD][..], 2), (&[], 4)] {
            let goes = pod_with("goes", &gone, Mounting::Plain);
            scene.run(&goes);
            scene.crustlet.kill();
            scene.crustlet.remove("goes");
            scene.clear_requests();
            scene.start(gate);
            scene.crustlet.wait_gone(&goes.uid());
            scene.wait_for_stats(&[&kept]);
            assert_eq!(scene.counters(), Counters { reconstructed, ..Counters::default() });
            assert_eq!(scene.container(&stays), container);
            scene.assert_unpublished(Mounting::Plain);
        }
        scene.end(&stays);
        scene.assert_nothing_left(&[&kept, &gone]);
    }
}

//! Manifests and a container runtime that become available late. No volume is unpublished before the whole desired
//! state is known (KEP-3756, "Proposed `VolumeManager` startup", 4).

use std::fs;
use std::path::PathBuf;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::on_each_delegate;
use tonic::Status;

use crate::scene::{Mounting, Scene, Storage, pod_with};

/// A second directory of manifests, with one pod, that can be moved away and back.
struct SecondDirectory {
    directory: PathBuf,
    first: String,
    second: String,
}

impl SecondDirectory {
    fn new(scene: &Scene, pod: &Pod) -> Self {
        let directory = scene.node.dir().subdir("second");
        let file = directory.join("pod.yaml");
        fs::write(&file, pod.to_string()).expect("a manifest");
        let argument = |directory: &PathBuf| format!("--manifests={}", directory.display());
        let first = scene.crustlet.manifest("x").parent().map(PathBuf::from);
        Self {
            first: argument(&first.expect("a directory")),
            second: argument(&directory),
            directory,
        }
    }

    #[track_caller]
    fn start(&self, scene: &Scene) {
        scene.start(&[&self.first, &self.second]);
    }

    fn moved_path(&self) -> PathBuf {
        self.directory.with_extension("away")
    }

    fn move_away(&self) {
        fs::rename(&self.directory, self.moved_path()).expect("rename");
    }

    fn move_back(&self) {
        fs::rename(self.moved_path(), &self.directory).expect("rename");
    }
}

/// Asserts that a new pod starts, and that nothing is removed. The first volume has to be uncertain.
#[track_caller]
fn assert_only_starts_pods(scene: &Scene, storages: [&Storage; 2]) {
    let [existing, other] = storages;
    let beside = pod_with("beside", other, Mounting::Deferred);
    scene.run(&beside);
    scene.wait_for_relist();
    scene.assert_nothing_removed();
    scene
        .crustlet
        .wait_volume(&existing.volume.id, "uncertain", |volume| {
            volume["status"]["mounts"][0]["state"] == "Uncertain"
        });
    assert_eq!(scene.sh(&beside, "cat /data/begun-by-beside"), "begun");
}

on_each_delegate! {
    fn pods_of_a_late_directory_keep_their_volumes(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (storage, other) = (scene.claim("data"), scene.claim("other"));
        let pod = pod_with("late", &storage, Mounting::Deferred);
        let second_directory = SecondDirectory::new(&scene, &pod);
        scene.crustlet.kill();
        second_directory.start(&scene);
        scene.wait_running(&pod);
        let (container, sandboxes) = (scene.container(&pod), scene.sandboxes(&pod));

        scene.crustlet.kill();
        second_directory.move_away();
        scene.clear_requests();
        second_directory.start(&scene);
        assert_only_starts_pods(&scene, [&storage, &other]);
        second_directory.move_back();
        scene.wait_for_stats(&[&storage]);
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        assert_eq!((scene.container(&pod), scene.sandboxes(&pod)), (container, sandboxes));

        // The agent starts again without the directory, which then comes back without the pod.
        scene.crustlet.kill();
        second_directory.move_away();
        scene.clear_requests();
        second_directory.start(&scene);
        scene.wait_for_stats(&[&other]);
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        fs::remove_file(second_directory.moved_path().join("pod.yaml")).expect("the manifest");
        second_directory.move_back();
        scene.crustlet.wait_gone(&pod.uid());
        scene.crustlet.remove("beside");
        scene.assert_nothing_left(&[&storage, &other]);
        scene.assert_unpublished(Mounting::Deferred);
    }

    fn a_half_written_manifest_is_awaited(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (storage, other) = (scene.claim("data"), scene.claim("other"));
        let pod = pod_with("web", &storage, Mounting::Deferred);
        scene.run(&pod);
        let container = scene.container(&pod);
        let file = scene.crustlet.manifest("web");
        let whole = fs::read_to_string(&file).expect("the manifest");

        scene.crustlet.kill();
        fs::write(&file, &whole[..whole.len() / 2]).expect("a write");
        scene.clear_requests();
        scene.start(&[]);
        assert_only_starts_pods(&scene, [&storage, &other]);
        fs::write(&file, &whole).expect("a write");
        scene.wait_for_stats(&[&storage]);
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        assert_eq!(scene.container(&pod), container);
        // A manifest that was read before keeps its last state.
        fs::write(&file, &whole[..whole.len() / 2]).expect("a write");
        scene.wait_for_relist();
        scene.assert_nothing_removed();
        scene.end(&pod);
        scene.crustlet.remove("beside");
        scene.assert_nothing_left(&[&storage, &other]);
    }

    fn an_unresponsive_container_runtime_is_awaited(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (round, name) in ["one", "two"].into_iter().enumerate() {
            let mounting = if round == 0 { Mounting::Deferred } else { Mounting::Plain };
            let pod = pod_with(name, &storage, mounting);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(name);
            scene.clear_requests();
            if round == 0 {
                scene.runtime.refuse_all(Status::unavailable("not ready"));
                scene.start(&[]);
                scene.wait_for_relist();
            } else {
                scene.runtime.hold("ListPodSandbox", Moment::After);
                scene.start(&[]);
                scene.runtime.wait_held();
                scene.crustlet.wait_volume(&storage.volume.id, "uncertain", |volume| {
                    volume["status"]["mounts"][0]["state"] == "Uncertain"
                });
            }
            scene.assert_nothing_removed();
            assert_eq!(scene.sandboxes(&pod).len(), 1);
            scene.runtime.clear_faults();
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(mounting);
        }
    }
}

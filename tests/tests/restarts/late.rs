//! Whoever is known late: nothing is taken back before all that is wanted is known (KEP-3756, "Proposed `VolumeManager`
//! startup", 4).

use std::fs;
use std::path::PathBuf;

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::on_each_delegate;
use tonic::Status;

use crate::scene::{How, Scene, Storage, pod_with};

/// A second directory of manifests, with a pod of its own.
struct Late {
    directory: PathBuf,
    first: String,
    second: String,
}

impl Late {
    fn new(scene: &Scene, pod: &Pod) -> Self {
        let directory = scene.node.dir().subdir("late");
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

    fn away(&self) -> PathBuf {
        self.directory.with_extension("away")
    }

    fn leave(&self) {
        fs::rename(&self.directory, self.away()).expect("the directory goes");
    }

    fn come(&self) {
        fs::rename(self.away(), &self.directory).expect("the directory comes");
    }
}

/// What is wanted by what is known is mounted, and that alone.
#[track_caller]
fn assert_only_begins(scene: &Scene, storages: [&Storage; 2]) {
    let [there, other] = storages;
    let beside = pod_with("beside", other, How::Deferred);
    scene.run(&beside);
    scene.wait_look();
    scene.assert_nothing_taken_back();
    scene
        .crustlet
        .wait_volume(&there.volume.id, "uncertain", |volume| {
            volume["status"]["mounts"][0]["state"] == "Uncertain"
        });
    assert_eq!(scene.sh(&beside, "cat /data/begun-by-beside"), "begun");
}

on_each_delegate! {
    fn a_directory_that_comes_late_has_what_it_wants(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (storage, other) = (scene.claim("data"), scene.claim("other"));
        let pod = pod_with("late", &storage, How::Deferred);
        let late = Late::new(&scene, &pod);
        scene.crustlet.kill();
        late.start(&scene);
        scene.wait_runs(&pod);
        let (container, sandboxes) = (scene.container(&pod), scene.sandboxes(&pod));

        scene.crustlet.kill();
        late.leave();
        scene.clear_requests();
        late.start(&scene);
        assert_only_begins(&scene, [&storage, &other]);
        late.come();
        scene.wait_measured(&[&storage]);
        scene.wait_look();
        scene.assert_nothing_taken_back();
        assert_eq!((scene.container(&pod), scene.sandboxes(&pod)), (container, sandboxes));

        // The same, and it doesn't want it any more.
        scene.crustlet.kill();
        late.leave();
        scene.clear_requests();
        late.start(&scene);
        scene.wait_measured(&[&other]);
        scene.wait_look();
        scene.assert_nothing_taken_back();
        fs::remove_file(late.away().join("pod.yaml")).expect("its manifest");
        late.come();
        scene.crustlet.wait_gone(&pod.uid());
        scene.crustlet.remove("beside");
        scene.assert_nothing_left(&[&storage, &other]);
        scene.assert_unpublished(How::Deferred);
    }

    fn a_manifest_that_is_half_written_is_waited_for(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (storage, other) = (scene.claim("data"), scene.claim("other"));
        let pod = pod_with("web", &storage, How::Deferred);
        scene.run(&pod);
        let container = scene.container(&pod);
        let file = scene.crustlet.manifest("web");
        let whole = fs::read_to_string(&file).expect("its manifest");

        scene.crustlet.kill();
        fs::write(&file, &whole[..whole.len() / 2]).expect("half of it");
        scene.clear_requests();
        scene.start(&[]);
        assert_only_begins(&scene, [&storage, &other]);
        fs::write(&file, &whole).expect("all of it");
        scene.wait_measured(&[&storage]);
        scene.wait_look();
        scene.assert_nothing_taken_back();
        assert_eq!(scene.container(&pod), container);
        // One that is known stays as it was.
        fs::write(&file, &whole[..whole.len() / 2]).expect("half of it");
        scene.wait_look();
        scene.assert_nothing_taken_back();
        scene.end(&pod);
        scene.crustlet.remove("beside");
        scene.assert_nothing_left(&[&storage, &other]);
    }

    fn a_container_runtime_that_does_not_answer_is_waited_for(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (round, name) in ["one", "two"].into_iter().enumerate() {
            let how = if round == 0 { How::Deferred } else { How::Plain };
            let pod = pod_with(name, &storage, how);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(name);
            scene.clear_requests();
            if round == 0 {
                scene.runtime.refuse_all(Status::unavailable("not yet"));
                scene.start(&[]);
                scene.wait_look();
            } else {
                scene.runtime.hold("ListPodSandbox", Moment::After);
                scene.start(&[]);
                scene.runtime.wait_held();
                scene.crustlet.wait_volume(&storage.volume.id, "uncertain", |volume| {
                    volume["status"]["mounts"][0]["state"] == "Uncertain"
                });
            }
            scene.assert_nothing_taken_back();
            assert_eq!(scene.sandboxes(&pod).len(), 1);
            scene.runtime.clear_faults();
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(how);
        }
    }
}

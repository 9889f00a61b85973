//! What is on the disk and doesn't say what it is.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, mounts, on_each_delegate};

use crate::scene::{Counted, How, Scene, Storage, pod_with};

/// What is done to a volume's record.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Removed,
    Torn,
    /// It is another volume's.
    Foreign,
}

/// Each, with either volume in turn: with the other one on the other delegate.
fn damages(delegate: Delegate) -> impl Iterator<Item = (Damage, How)> {
    let [one, other] = match delegate {
        Delegate::Runc => [How::Deferred, How::Plain],
        Delegate::Crun => [How::Plain, How::Deferred],
    };
    let all = [Damage::Removed, Damage::Torn, Damage::Foreign];
    all.into_iter().zip([one, other, one])
}

/// As a part of a pod's name.
impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Removed => "removed",
            Self::Torn => "torn",
            Self::Foreign => "foreign",
        })
    }
}

impl Damage {
    /// Does it to the record in a volume's directory.
    #[track_caller]
    fn inflict(self, directory: &Path) {
        let record = directory.join("vol_data.json");
        let text = fs::read_to_string(&record).expect("a record");
        match self {
            Self::Removed => fs::remove_file(&record).expect("it goes"),
            Self::Torn => fs::write(&record, &text[..text.len() / 2]).expect("half of it"),
            Self::Foreign => {
                let other = text.replace("\"specVolID\":\"", "\"specVolID\":\"x-");
                let other = other.replace("\"volumeHandle\":\"", "\"volumeHandle\":\"x-");
                assert_ne!(text, other);
                fs::write(&record, other).expect("another's");
            }
        }
    }
}

fn of_pod(scene: &Scene, pod: &Pod, storage: &Storage) -> PathBuf {
    let target = scene.target(pod, &storage.pv);
    target.parent().expect("a volume's directory").to_owned()
}

fn staged(scene: &Scene, storage: &Storage) -> PathBuf {
    let staging = scene.crustlet.staging(&storage.volume.id);
    staging.parent().expect("a volume's directory").to_owned()
}

on_each_delegate! {
    /// The pod is gone, and its processes go first.
    fn a_volume_whose_record_is_lost_is_cleaned_by_force(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (damage, how) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{how}"), &storage, how);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            let directory = of_pod(&scene, &pod, &storage);
            damage.inflict(&directory);
            scene.clear_requests();
            scene.runtime.hold("StopContainer", Moment::Before);
            scene.start(&[]);
            scene.runtime.wait_held();
            assert!(directory.exists());
            scene.runtime.clear_faults();
            scene.assert_nothing_left(&[&storage]);
            // What is staged has its name.
            let steps = scene.relay.steps();
            assert_eq!(steps, ["NodeUnpublishVolumeRequest", "NodeUnstageVolumeRequest"]);
            scene.assert_unpublished(how);
            let expected = Counted {
                reconstructed: 2,
                not_reconstructed: 1,
                cleaned: 1,
                ..Counted::default()
            };
            assert_eq!(scene.counted(), expected);
        }
    }

    /// Whom to ask isn't known. What its driver has of it is somebody's to put away, as KEP-3756 has it.
    fn a_volume_without_a_record_is_cleaned_without_the_driver(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for how in [How::Deferred, How::Plain] {
            let pod = pod_with(&format!("pod-{how}"), &storage, how);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            for directory in [of_pod(&scene, &pod, &storage), staged(&scene, &storage)] {
                Damage::Torn.inflict(&directory);
            }
            scene.clear_requests();
            scene.start(&[]);
            scene.crustlet.wait_gone(&pod.uid());
            scene.crustlet.wait_no_volumes();
            assert_eq!(scene.relay.steps(), Vec::<&str>::new());
            let expected = Counted {
                reconstructed: 2,
                not_reconstructed: 2,
                cleaned: 2,
                ..Counted::default()
            };
            assert_eq!(scene.counted(), expected);
            let target = scene.target(&pod, &storage.pv);
            scene.csi.call_ok(storage.volume.unpublish(&target));
            let mut unstage = storage.volume.unstage();
            utf8(&scene.crustlet.staging(&storage.volume.id)).clone_into(&mut unstage.staging_target_path);
            scene.csi.call_ok(unstage);
            scene.assert_nothing_left(&[&storage]);
        }
    }

    fn a_wanted_volume_without_a_record_is_mounted_as_usual(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (damage, how) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{how}"), &storage, how);
            scene.run(&pod);
            let container = scene.container(&pod);
            scene.crustlet.kill();
            damage.inflict(&of_pod(&scene, &pod, &storage));
            scene.clear_requests();
            scene.start(&[]);
            scene.wait_measured(&[&storage]);
            scene.wait_look();
            scene.assert_nothing_taken_back();
            assert_eq!(scene.container(&pod), container);
            scene.assert_there(&pod, &storage, how);
            let expected = Counted {
                reconstructed: 2,
                not_reconstructed: 1,
                ..Counted::default()
            };
            assert_eq!(scene.counted(), expected);
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(how);
        }
    }

    /// Its pods' records say which it is.
    fn a_staged_volume_whose_record_is_lost_is_its_pods(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (damage, how) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{how}"), &storage, how);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            damage.inflict(&staged(&scene, &storage));
            scene.clear_requests();
            scene.start(&[]);
            scene.assert_nothing_left(&[&storage]);
            let steps = scene.relay.steps();
            assert_eq!(steps, ["NodeUnpublishVolumeRequest", "NodeUnstageVolumeRequest"]);
            assert_eq!(scene.counted(), Counted { reconstructed: 2, ..Counted::default() });
        }
    }

    /// No pod's record is left to say it.
    fn an_orphaned_staging_without_a_record_is_cleaned_by_force(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        scene.crustlet.kill();
        let staging = scene.crustlet.staging(&storage.volume.id);
        let [empty, mounted] = [&staging, &scene.crustlet.staging("of-another")].map(Clone::clone);
        for directory in [&empty, &mounted] {
            fs::create_dir_all(directory).expect("a staging directory");
        }
        // As if a driver had staged it twice.
        mounts::tmpfs(&mounted);
        mounts::tmpfs(&mounted);
        fs::write(mounted.join("data"), "a volume's").expect("a file in it");
        scene.clear_requests();
        scene.start(&[]);
        scene.crustlet.wait("them to go", || scene.crustlet.leftovers().is_empty());
        scene.wait_look();
        assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "no driver is asked");
        let expected = Counted {
            reconstructed: 2,
            not_reconstructed: 2,
            cleaned: 2,
            ..Counted::default()
        };
        assert_eq!(scene.counted(), expected);
        scene.assert_nothing_left(&[&storage]);
    }

    fn a_directory_of_nobodys_is_cleaned_by_force_but_no_file(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let pod = Pod::new("stray");
        scene.crustlet.kill();
        let volumes = scene.crustlet.pod_dir(&pod.uid()).join("volumes/kubernetes.io~csi");
        let [stray, mounted, used] = ["stray", "mounted", "used"].map(|it| volumes.join(it));
        for directory in [&stray, &mounted.join("mount"), &used.join("mount")] {
            fs::create_dir_all(directory).expect("a directory");
        }
        mounts::tmpfs(&mounted.join("mount"));
        let file = used.join("mount/data");
        fs::write(&file, "a workload's").expect("a file");
        scene.start(&[]);
        let expected = Counted {
            reconstructed: 3,
            not_reconstructed: 3,
            cleaned: 3,
            not_cleaned: 1,
            orphans: 1,
        };
        scene.crustlet.wait("all to be counted", || scene.counted() == expected);
        assert!(!stray.exists() && !mounted.exists());
        assert_eq!(fs::read_to_string(&file).expect("the file"), "a workload's");
        let log = scene.crustlet.log();
        let told = log.lines().find(|line| line.contains("can't be cleaned"));
        let told = told.unwrap_or_else(|| panic!("{log}"));
        assert!(told.contains(used.to_str().expect("UTF-8")) && told.contains("hint:"), "{told}");
        // Once: whoever looks what it is does the rest.
        scene.wait_look();
        assert_eq!(scene.counted(), expected);
        fs::remove_dir_all(&used).expect("somebody removes it");
        scene.crustlet.wait("the pod's directory to go", || scene.crustlet.leftovers().is_empty());
        scene.crustlet.wait("no orphan to be told", || scene.counted().orphans == 0);
        scene.assert_nothing_left(&[]);
    }

    /// Its pod wants it, and doesn't get it; then it doesn't want it any more.
    fn what_was_wanted_and_is_not_any_more_is_cleaned_by_force_too(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = pod_with("web", &storage, How::Deferred);
        scene.run(&pod);
        scene.crustlet.kill();
        Damage::Removed.inflict(&of_pod(&scene, &pod, &storage));
        scene.csi.kill();
        scene.start(&[]);
        scene.wait_look();
        let found = Counted {
            reconstructed: 2,
            not_reconstructed: 1,
            ..Counted::default()
        };
        assert_eq!(scene.counted(), found);
        scene.crustlet.remove("web");
        let cleaned = Counted { cleaned: 1, ..found };
        scene.crustlet.wait("it to be cleaned", || scene.counted() == cleaned);
        scene.csi.spawn(scene.csi.command(&[]));
        scene.assert_nothing_left(&[&storage]);
    }
}

//! Reconstruction of volumes whose records on the disk are missing or wrong.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use runcrust_tests::csi::Moment;
use runcrust_tests::manifests::Pod;
use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, mounts, on_each_delegate};

use crate::scene::{Counters, Mounting, Scene, Storage, pod_with};

/// The damage to a volume's record.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    Removed,
    Torn,
    /// The record names another volume.
    Foreign,
}

/// Returns each damage with one kind of volume. The other delegate tests it with the other kind.
fn damages(delegate: Delegate) -> impl Iterator<Item = (Damage, Mounting)> {
    let [one, other] = match delegate {
        Delegate::Runc => [Mounting::Deferred, Mounting::Plain],
        Delegate::Crun => [Mounting::Plain, Mounting::Deferred],
    };
    let all = [Damage::Removed, Damage::Torn, Damage::Foreign];
    all.into_iter().zip([one, other, one])
}

/// The name of the damage in the name of a pod.
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
    /// Damages the record in a volume's directory.
    #[track_caller]
    fn apply(self, directory: &Path) {
        let record = directory.join("vol_data.json");
        let text = fs::read_to_string(&record).expect("a record");
        match self {
            Self::Removed => fs::remove_file(&record).expect("unlink"),
            Self::Torn => fs::write(&record, &text[..text.len() / 2]).expect("a write"),
            Self::Foreign => {
                let other = text.replace("\"specVolID\":\"", "\"specVolID\":\"x-");
                let other = other.replace("\"volumeHandle\":\"", "\"volumeHandle\":\"x-");
                assert_ne!(text, other);
                fs::write(&record, other).expect("a write");
            }
        }
    }
}

fn pod_volume_dir(scene: &Scene, pod: &Pod, storage: &Storage) -> PathBuf {
    let target = scene.target(pod, &storage.pv);
    target.parent().expect("a volume's directory").to_owned()
}

fn staging_dir(scene: &Scene, storage: &Storage) -> PathBuf {
    let staging = scene.crustlet.staging(&storage.volume.id);
    staging.parent().expect("a volume's directory").to_owned()
}

on_each_delegate! {
    /// The pod is gone. Its processes end before its volumes are cleaned.
    fn a_volume_with_a_lost_record_is_cleaned_by_force(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (damage, mounting) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{mounting}"), &storage, mounting);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            let directory = pod_volume_dir(&scene, &pod, &storage);
            damage.apply(&directory);
            scene.clear_requests();
            scene.runtime.hold("StopContainer", Moment::Before);
            scene.start(&[]);
            scene.runtime.wait_held();
            assert!(directory.exists());
            scene.runtime.clear_faults();
            scene.assert_nothing_left(&[&storage]);
            // The staging directory still names the volume, so the driver is called.
            let steps = scene.relay.steps();
            assert_eq!(steps, ["NodeUnpublishVolumeRequest", "NodeUnstageVolumeRequest"]);
            scene.assert_unpublished(mounting);
            let expected = Counters {
                reconstructed: 2,
                not_reconstructed: 1,
                cleaned: 1,
                ..Counters::default()
            };
            assert_eq!(scene.counters(), expected);
        }
    }

    /// The driver is unknown. According to KEP-3756, an operator has to clean up what the driver keeps of the volume.
    fn a_volume_without_a_record_is_cleaned_without_the_driver(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for mounting in [Mounting::Deferred, Mounting::Plain] {
            let pod = pod_with(&format!("pod-{mounting}"), &storage, mounting);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            for directory in [pod_volume_dir(&scene, &pod, &storage), staging_dir(&scene, &storage)] {
                Damage::Torn.apply(&directory);
            }
            scene.clear_requests();
            scene.start(&[]);
            scene.crustlet.wait_gone(&pod.uid());
            scene.crustlet.wait_no_volumes();
            assert_eq!(scene.relay.steps(), Vec::<&str>::new());
            let expected = Counters {
                reconstructed: 2,
                not_reconstructed: 2,
                cleaned: 2,
                ..Counters::default()
            };
            assert_eq!(scene.counters(), expected);
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
        for (damage, mounting) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{mounting}"), &storage, mounting);
            scene.run(&pod);
            let container = scene.container(&pod);
            scene.crustlet.kill();
            damage.apply(&pod_volume_dir(&scene, &pod, &storage));
            scene.clear_requests();
            scene.start(&[]);
            scene.wait_for_stats(&[&storage]);
            scene.wait_for_relist();
            scene.assert_nothing_removed();
            assert_eq!(scene.container(&pod), container);
            scene.assert_mounted(&pod, &storage, mounting);
            let expected = Counters {
                reconstructed: 2,
                not_reconstructed: 1,
                ..Counters::default()
            };
            assert_eq!(scene.counters(), expected);
            scene.end(&pod);
            scene.assert_nothing_left(&[&storage]);
            scene.assert_unpublished(mounting);
        }
    }

    /// The records of its pods name the volume.
    fn a_staged_volume_is_found_by_the_records_of_its_pods(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        for (damage, mounting) in damages(delegate) {
            let pod = pod_with(&format!("pod-{damage}-{mounting}"), &storage, mounting);
            scene.run(&pod);
            scene.crustlet.kill();
            scene.crustlet.remove(pod.name());
            damage.apply(&staging_dir(&scene, &storage));
            scene.clear_requests();
            scene.start(&[]);
            scene.assert_nothing_left(&[&storage]);
            let steps = scene.relay.steps();
            assert_eq!(steps, ["NodeUnpublishVolumeRequest", "NodeUnstageVolumeRequest"]);
            assert_eq!(scene.counters(), Counters { reconstructed: 2, ..Counters::default() });
        }
    }

    /// No record of a pod is left that names the volume.
    fn an_orphaned_staging_without_a_record_is_cleaned_by_force(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        scene.crustlet.kill();
        let staging = scene.crustlet.staging(&storage.volume.id);
        let [empty, mounted] = [&staging, &scene.crustlet.staging("of-another")].map(Clone::clone);
        for directory in [&empty, &mounted] {
            fs::create_dir_all(directory).expect("a staging directory");
        }
        // There are two mounts, as if a driver had staged the volume twice.
        mounts::tmpfs(&mounted);
        mounts::tmpfs(&mounted);
        fs::write(mounted.join("data"), "a volume's").expect("a file");
        scene.clear_requests();
        scene.start(&[]);
        scene.crustlet.wait("the directories to be removed", || scene.crustlet.leftovers().is_empty());
        scene.wait_for_relist();
        assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "no driver is called");
        let expected = Counters {
            reconstructed: 2,
            not_reconstructed: 2,
            cleaned: 2,
            ..Counters::default()
        };
        assert_eq!(scene.counters(), expected);
        scene.assert_nothing_left(&[&storage]);
    }

    fn stray_directories_are_cleaned_but_no_files_removed(delegate: Delegate) {
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
        let expected = Counters {
            reconstructed: 3,
            not_reconstructed: 3,
            cleaned: 3,
            not_cleaned: 1,
            orphans: 1,
        };
        scene.crustlet.wait("all to be counted", || scene.counters() == expected);
        assert!(!stray.exists() && !mounted.exists());
        assert_eq!(fs::read_to_string(&file).expect("the file"), "a workload's");
        let log = scene.crustlet.log();
        let line = log.lines().find(|line| line.contains("can't be cleaned"));
        let line = line.unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(used.to_str().expect("UTF-8")) && line.contains("hint:"), "{line}");
        // The cleanup is tried once. An operator has to inspect the directory and do the rest.
        scene.wait_for_relist();
        assert_eq!(scene.counters(), expected);
        fs::remove_dir_all(&used).expect("an operator removes it");
        scene.crustlet.wait("the pod's directory to be removed", || scene.crustlet.leftovers().is_empty());
        scene.crustlet.wait("no orphan to be counted", || scene.counters().orphans == 0);
        scene.assert_nothing_left(&[]);
    }

    /// The pod wants the volume and cannot get it. Then the pod is removed.
    fn a_volume_that_is_no_longer_wanted_is_cleaned_by_force(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        let pod = pod_with("web", &storage, Mounting::Deferred);
        scene.run(&pod);
        scene.crustlet.kill();
        Damage::Removed.apply(&pod_volume_dir(&scene, &pod, &storage));
        scene.csi.kill();
        scene.start(&[]);
        scene.wait_for_relist();
        let found = Counters {
            reconstructed: 2,
            not_reconstructed: 1,
            ..Counters::default()
        };
        assert_eq!(scene.counters(), found);
        scene.crustlet.remove("web");
        let cleaned = Counters { cleaned: 1, ..found };
        scene.crustlet.wait("the volume to be cleaned", || scene.counters() == cleaned);
        scene.csi.spawn(scene.csi.command(&[]));
        scene.assert_nothing_left(&[&storage]);
    }
}

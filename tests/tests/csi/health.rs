//! CSI 1.13's calls for health, which report the same as `volume_condition`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crust_proto::csi::v1::volume_health::VolumeHealthEntry;
use crust_proto::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest,
    NodeGetStorageHealthRequest, StorageHealthErrorType, VolumeHealth, VolumeHealthErrorType,
};
use runcrust_tests::csi::{CsiVolume, block, filesystem, mount_of};
use runcrust_tests::loopdev;
use runcrust_tests::mounts::{mount, unmount};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::volume::mkfs;
use runcrust_tests::{Csi, Delegate, LoopDevice, Node, Run, wait_until};
use tonic::Code;

use crate::scene::{Scene, write};
use crate::{deferred_publish_request, expect_error};

/// Returns the status and the reason of each problem of a volume.
fn problems(
    health: Option<VolumeHealth>,
    volume: &CsiVolume,
) -> Vec<(VolumeHealthErrorType, String)> {
    let health = health.expect("volume_health is REQUIRED");
    assert_eq!(health.volume_id, volume.id);
    let status_and_reason = |entry: VolumeHealthEntry| {
        assert!(!entry.message.is_empty(), "{entry:?}");
        (entry.status(), entry.reason)
    };
    health
        .health_statuses
        .into_iter()
        .map(status_and_reason)
        .collect()
}

impl Scene {
    fn node_problems(
        &self,
        volume: &CsiVolume,
        path: &std::path::Path,
    ) -> Vec<(VolumeHealthErrorType, String)> {
        let answer = self.call_ok(volume.health(path));
        problems(answer.volume_health, volume)
    }

    fn controller_problems(&self, volume: &CsiVolume) -> Vec<(VolumeHealthErrorType, String)> {
        let answer = self.call(ControllerGetVolumeHealthRequest {
            volume_id: volume.id.clone(),
            ..ControllerGetVolumeHealthRequest::default()
        });
        let answer = answer.expect("ControllerGetVolumeHealth");
        problems(answer.volume_health, volume)
    }
}

#[test]
fn a_healthy_volume_has_no_problems() {
    let scene = Scene::with_crust_ops();
    let none = Vec::new();
    let mounted = scene.staged("mounted", filesystem("ext4"));
    let raw = scene.staged("raw", block());
    let deferred = scene.staged("deferred", filesystem("ext4"));
    let paths = [&mounted, &raw, &deferred].map(|volume| scene.target("pod", &volume.id));
    for (volume, path) in [&mounted, &raw, &deferred].into_iter().zip(&paths) {
        // The volume is not published yet, but CSI 1.13 allows the call.
        assert_eq!(scene.node_problems(volume, path), none);
    }
    scene.call_ok(mounted.publish(&paths[0]));
    scene.call_ok(raw.publish(&paths[1]));
    scene.call_ok(deferred_publish_request(&deferred, &paths[2]));
    for (volume, path) in [&mounted, &raw, &deferred].into_iter().zip(&paths) {
        assert_eq!(scene.node_problems(volume, path), none);
        assert_eq!(scene.controller_problems(volume), none);
    }
    let listed = scene.call(ControllerListVolumeHealthRequest::default());
    assert_eq!(listed.expect("ControllerListVolumeHealth").entries, []);
    let storage = scene.call(NodeGetStorageHealthRequest::default());
    assert_eq!(storage.expect("NodeGetStorageHealth").backend_health, []);
}

/// Both interfaces are called for the same volume.
#[test]
fn each_problem_is_reported_by_both_interfaces() {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let scene = Scene::with_crust_ops();
    let problem = |status, reason: &str| vec![(status, reason.to_owned())];
    let condition = |volume: &CsiVolume, path: &std::path::Path| {
        let stats = scene.call_ok(volume.stats(path));
        let condition = stats.volume_condition.expect("VOLUME_CONDITION");
        assert!(
            condition.abnormal && !condition.message.is_empty(),
            "{condition:?}"
        );
    };

    let cut = scene.staged("cut", filesystem("ext4"));
    let path = scene.target("pod", "cut");
    scene.call_ok(cut.publish(&path));
    let image = fs::File::options().write(true).open(scene.image(&cut.id));
    image
        .and_then(|image| image.set_len(1 << 20))
        .expect("a shorter image");
    // The file system may report the same damage.
    let problems = scene.node_problems(&cut, &path);
    assert_eq!(problems[..1], problem(DataLoss, "ImageCut"), "{problems:?}");
    assert_eq!(
        scene.controller_problems(&cut),
        problem(DataLoss, "ImageCut")
    );
    condition(&cut, &path);

    let unlinked = scene.staged("unlinked", filesystem("ext4"));
    let path = scene.target("pod", "unlinked");
    scene.call_ok(unlinked.publish(&path));
    let device = scene.device(&unlinked.id);
    fs::remove_file(scene.image(&unlinked.id)).expect("the image");
    assert_eq!(
        scene.node_problems(&unlinked, &path),
        problem(Inaccessible, "ImageMissing")
    );
    assert_eq!(
        scene.controller_problems(&unlinked),
        problem(Inaccessible, "ImageMissing")
    );
    condition(&unlinked, &path);

    // Both volumes are listed, on a page each.
    let mut ids = Vec::new();
    let mut request = ControllerListVolumeHealthRequest {
        max_entries: 1,
        ..Default::default()
    };
    loop {
        let page = scene.call_ok(request.clone());
        assert_eq!(page.entries.len(), 1, "{page:?}");
        ids.extend(page.entries.into_iter().map(|it| it.volume_id));
        if page.next_token.is_empty() {
            break;
        }
        request.starting_token = page.next_token;
    }
    let mut expected = [cut.id.clone(), unlinked.id.clone()];
    expected.sort();
    assert_eq!(ids, expected);

    let unmounted = scene.staged("unmounted", filesystem("ext4"));
    let path = scene.target("pod", "unmounted");
    scene.call_ok(unmounted.publish(&path));
    unmount(&path);
    assert_eq!(
        scene.node_problems(&unmounted, &path),
        problem(Inaccessible, "NotMounted")
    );

    // A pod with a handler without runcrust writes to the host's disk.
    let astray = scene.staged("astray", filesystem("ext4"));
    let path = scene.target("pod", "astray");
    scene.call_ok(deferred_publish_request(&astray, &path));
    write(&path, "file", "data");
    assert_eq!(
        scene.node_problems(&astray, &path),
        problem(Degraded, "FilesOnTheHost")
    );
    condition(&astray, &path);
    loopdev::detach(&device);
}

/// A frozen file system (fsfreeze(8)). Dropping the value thaws it.
struct FrozenFilesystem<'p>(&'p Path);

impl<'p> FrozenFilesystem<'p> {
    fn new(at: &'p Path) -> Self {
        let frozen = Self(at);
        let _ = frozen.fsfreeze("--freeze").success();
        frozen
    }

    fn fsfreeze(&self, action: &str) -> Run {
        Run::capture(Command::new("fsfreeze").arg(action).arg(self.0))
    }
}

impl Drop for FrozenFilesystem<'_> {
    fn drop(&mut self) {
        let _ = self.fsfreeze("--unfreeze");
    }
}

/// A publication is recorded before the walk that applies the fsGroup, and mounted after the walk. The walk may take
/// minutes.
#[test]
fn a_volume_that_is_being_published_has_no_problem() {
    let scene = Scene::new();
    let mut volume = scene.staged("pv", filesystem("ext4"));
    let first = scene.publish(&volume, "one");
    mount_of(&mut volume.capability).volume_mount_group = "4001".to_owned();
    let second = scene.target("two", "pv");
    let frozen = FrozenFilesystem::new(&first);
    std::thread::scope(|scope| {
        // `frozen` is moved here, so that the walk ends even if an assertion fails.
        let frozen = frozen;
        let published = scope.spawn(|| scene.call(volume.publish(&second)));
        let record = format!("volumes/{}.json", volume.id);
        wait_until("the publish to be on record", WAIT_TIMEOUT, || {
            let record = fs::read_to_string(scene.data().join(&record)).expect("a record");
            record.contains(second.to_str().expect("UTF-8"))
        });
        assert_eq!(scene.node_problems(&volume, &second), []);
        assert!(!published.is_finished());
        drop(frozen);
        let published = published.join().expect("a thread");
        published.expect("NodePublishVolume");
    });
    assert_eq!(scene.node_problems(&volume, &second), []);
    scene.remove_volume(&volume, &[&first, &second]);
}

/// A damaged inode on the disk with the images affects one volume. The other volumes are still reported.
#[test]
fn an_unreadable_image_affects_one_volume_only() {
    let node = Node::root_only(Delegate::Runc, "");
    let path = node.dir().join("disk");
    let disk = fs::File::create_new(&path).expect("a disk");
    disk.set_len(1 << 30).expect("ftruncate");
    mkfs("ext4", &path, &[]);
    let disk = LoopDevice::on(&path);
    let mountpoint = node.dir().subdir("disk-of-images");
    mount(disk.path(), &mountpoint, "ext4");
    let data = mountpoint.join("csi");
    let data_dir_arguments = ["--data-dir", data.to_str().expect("UTF-8")];
    let csi = Csi::with(&node, &data_dir_arguments);
    let volumes = ["damaged", "missing", "well"].map(|name| csi.volume(name, filesystem("ext4")));
    let [damaged, missing, _] = &volumes;
    csi.kill();
    let image = |volume: &CsiVolume| format!("csi/images/{}.img", volume.id);
    fs::remove_file(mountpoint.join(image(missing))).expect("the image");
    unmount(&mountpoint);
    let request = format!("clri /{}", image(damaged));
    let mut debugfs = Command::new("debugfs");
    let _ = Run::capture(debugfs.args(["-w", "-R", &request]).arg(disk.path())).success();
    mount(disk.path(), &mountpoint, "ext4");
    csi.spawn(csi.command(&data_dir_arguments));

    let listed = csi.call(ControllerListVolumeHealthRequest::default());
    let listed = listed
        .expect("ControllerListVolumeHealth")
        .entries
        .into_iter();
    let mut reported: Vec<_> = listed
        .map(|it| (it.volume_id, it.health_statuses[0].reason.clone()))
        .collect();
    reported.sort();
    let mut expected = [(damaged, "ImageUnreadable"), (missing, "ImageMissing")]
        .map(|(volume, reason)| (volume.id.clone(), reason.to_owned()));
    expected.sort();
    assert_eq!(reported, expected);
    let path = csi.target("pod", "pv");
    let health = csi.call_ok(damaged.health(&path));
    let inaccessible = VolumeHealthErrorType::Inaccessible;
    assert_eq!(
        problems(health.volume_health, damaged),
        [(inaccessible, "ImageUnreadable".to_owned())]
    );
    csi.kill();
    unmount(&mountpoint);
}

#[test]
fn a_replaced_data_directory_is_reported() {
    let scene = Scene::new();
    let images = scene.data().join("images");
    let aside = scene.data().join("aside");
    fs::rename(&images, &aside).expect("mv");
    fs::create_dir(&images).expect("mkdir");
    let storage = scene.call(NodeGetStorageHealthRequest::default());
    let reported = storage.expect("NodeGetStorageHealth").backend_health;
    let reported: Vec<_> = reported
        .iter()
        .map(|it| (it.status(), it.reason.as_str()))
        .collect();
    assert_eq!(
        reported,
        [(
            StorageHealthErrorType::StorageUnreachable,
            "DataDirectoryReplaced"
        )]
    );
    fs::remove_dir(&images).expect("rmdir");
    fs::rename(&aside, &images).expect("mv");
    let storage = scene.call(NodeGetStorageHealthRequest::default());
    assert_eq!(storage.expect("NodeGetStorageHealth").backend_health, []);
}

#[test]
fn health_calls_can_be_left_out() {
    let arguments = [
        "--without",
        "GET_VOLUME_HEALTH",
        "--without",
        "GET_STORAGE_HEALTH",
    ];
    let scene = Scene::with(&arguments);
    let volume = scene.volume("pv", filesystem("ext4"));
    let path = scene.target("pod", "pv");
    expect_error(scene.call(volume.health(&path)), Code::Unimplemented);
    expect_error(
        scene.call(NodeGetStorageHealthRequest::default()),
        Code::Unimplemented,
    );
    expect_error(
        scene.call(ControllerListVolumeHealthRequest::default()),
        Code::Unimplemented,
    );
    let one = ControllerGetVolumeHealthRequest {
        volume_id: volume.id,
        ..Default::default()
    };
    expect_error(scene.call(one), Code::Unimplemented);
}

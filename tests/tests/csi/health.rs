//! CSI 1.13's calls for health, which tell of the same as `volume_condition`.

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
use crate::{deferring, refused};

/// What a volume's problems are, by status and reason.
fn problems(
    health: Option<VolumeHealth>,
    volume: &CsiVolume,
) -> Vec<(VolumeHealthErrorType, String)> {
    let health = health.expect("volume_health is REQUIRED");
    assert_eq!(health.volume_id, volume.id);
    let told = |entry: VolumeHealthEntry| {
        assert!(!entry.message.is_empty(), "{entry:?}");
        (entry.status(), entry.reason)
    };
    health.health_statuses.into_iter().map(told).collect()
}

impl Scene {
    fn node_problems(
        &self,
        volume: &CsiVolume,
        place: &std::path::Path,
    ) -> Vec<(VolumeHealthErrorType, String)> {
        let answer = self.call_ok(volume.health(place));
        problems(answer.volume_health, volume)
    }

    fn controllers_problems(&self, volume: &CsiVolume) -> Vec<(VolumeHealthErrorType, String)> {
        let answer = self.call(ControllerGetVolumeHealthRequest {
            volume_id: volume.id.clone(),
            ..ControllerGetVolumeHealthRequest::default()
        });
        let answer = answer.expect("ControllerGetVolumeHealth");
        problems(answer.volume_health, volume)
    }
}

#[test]
fn a_volume_that_is_well_has_no_problems_wherever_it_is() {
    let scene = Scene::deferring();
    let none = Vec::new();
    let mounted = scene.staged("mounted", filesystem("ext4"));
    let raw = scene.staged("raw", block());
    let deferred = scene.staged("deferred", filesystem("ext4"));
    let places = [&mounted, &raw, &deferred].map(|volume| scene.target("pod", &volume.id));
    for (volume, place) in [&mounted, &raw, &deferred].into_iter().zip(&places) {
        // Nothing is there yet; 1.13 may ask nevertheless.
        assert_eq!(scene.node_problems(volume, place), none);
    }
    scene.call_ok(mounted.publish(&places[0]));
    scene.call_ok(raw.publish(&places[1]));
    scene.call_ok(deferring(&deferred, &places[2]));
    for (volume, place) in [&mounted, &raw, &deferred].into_iter().zip(&places) {
        assert_eq!(scene.node_problems(volume, place), none);
        assert_eq!(scene.controllers_problems(volume), none);
    }
    let listed = scene.call(ControllerListVolumeHealthRequest::default());
    assert_eq!(listed.expect("ControllerListVolumeHealth").entries, []);
    let storage = scene.call(NodeGetStorageHealthRequest::default());
    assert_eq!(storage.expect("NodeGetStorageHealth").backend_health, []);
}

/// Both interfaces are asked about the same volume.
#[test]
fn each_problem_is_told_by_both_interfaces() {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let scene = Scene::deferring();
    let problem = |status, reason: &str| vec![(status, reason.to_owned())];
    let condition = |volume: &CsiVolume, place: &std::path::Path| {
        let stats = scene.call_ok(volume.stats(place));
        let condition = stats.volume_condition.expect("VOLUME_CONDITION");
        assert!(
            condition.abnormal && !condition.message.is_empty(),
            "{condition:?}"
        );
    };

    let cut = scene.staged("cut", filesystem("ext4"));
    let place = scene.target("pod", "cut");
    scene.call_ok(cut.publish(&place));
    let image = fs::File::options().write(true).open(scene.image(&cut.id));
    image
        .and_then(|image| image.set_len(1 << 20))
        .expect("a shorter image");
    // Its file system may have noticed, too.
    let told = scene.node_problems(&cut, &place);
    assert_eq!(told[..1], problem(DataLoss, "ImageCut"), "{told:?}");
    assert_eq!(
        scene.controllers_problems(&cut),
        problem(DataLoss, "ImageCut")
    );
    condition(&cut, &place);

    let unlinked = scene.staged("unlinked", filesystem("ext4"));
    let place = scene.target("pod", "unlinked");
    scene.call_ok(unlinked.publish(&place));
    let device = scene.device(&unlinked.id);
    fs::remove_file(scene.image(&unlinked.id)).expect("its image");
    assert_eq!(
        scene.node_problems(&unlinked, &place),
        problem(Inaccessible, "ImageMissing")
    );
    assert_eq!(
        scene.controllers_problems(&unlinked),
        problem(Inaccessible, "ImageMissing")
    );
    condition(&unlinked, &place);

    // The two are listed page by page.
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
    let place = scene.target("pod", "unmounted");
    scene.call_ok(unmounted.publish(&place));
    unmount(&place);
    assert_eq!(
        scene.node_problems(&unmounted, &place),
        problem(Inaccessible, "NotMounted")
    );

    // A pod under a handler without runcrust writes to the host's disk.
    let astray = scene.staged("astray", filesystem("ext4"));
    let place = scene.target("pod", "astray");
    scene.call_ok(deferring(&astray, &place));
    write(&place, "file", "data");
    assert_eq!(
        scene.node_problems(&astray, &place),
        problem(Degraded, "FilesOnTheHost")
    );
    condition(&astray, &place);
    loopdev::detach(&device);
}

/// A file system that nobody can write to until this is dropped.
struct Frozen<'p>(&'p Path);

impl<'p> Frozen<'p> {
    fn new(at: &'p Path) -> Self {
        let frozen = Self(at);
        let _ = frozen.turn("--freeze").success();
        frozen
    }

    fn turn(&self, how: &str) -> Run {
        Run::of(Command::new("fsfreeze").arg(how).arg(self.0))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = self.turn("--unfreeze");
    }
}

/// A publish is on record before its walk for fsGroup, which may take minutes, and its mount comes after that.
#[test]
fn a_volume_that_is_being_published_has_no_problem() {
    let scene = Scene::new();
    let mut volume = scene.staged("pv", filesystem("ext4"));
    let first = scene.publish(&volume, "one");
    mount_of(&mut volume.capability).volume_mount_group = "4001".to_owned();
    let second = scene.target("two", "pv");
    let frozen = Frozen::new(&first);
    std::thread::scope(|scope| {
        // The walk ends when this does, also by a panic.
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
    scene.put_away(&volume, &[&first, &second]);
}

/// A damaged inode of the images' disk is a problem of one volume. All others are told of nevertheless.
#[test]
fn an_unreadable_image_affects_one_volume_only() {
    let node = Node::root_only(Delegate::Runc, "");
    let path = node.dir().join("disk");
    let disk = fs::File::create_new(&path).expect("a disk");
    disk.set_len(1 << 30).expect("its size");
    mkfs("ext4", &path, &[]);
    let disk = LoopDevice::on(&path);
    let mountpoint = node.dir().subdir("disk-of-images");
    mount(disk.path(), &mountpoint, "ext4");
    let data = mountpoint.join("csi");
    let there = ["--data-dir", data.to_str().expect("UTF-8")];
    let csi = Csi::with(&node, &there);
    let volumes = ["damaged", "missing", "well"].map(|name| csi.volume(name, filesystem("ext4")));
    let [damaged, missing, _] = &volumes;
    csi.kill();
    let image = |volume: &CsiVolume| format!("csi/images/{}.img", volume.id);
    fs::remove_file(mountpoint.join(image(missing))).expect("its image");
    unmount(&mountpoint);
    let request = format!("clri /{}", image(damaged));
    let mut debugfs = Command::new("debugfs");
    let _ = Run::of(debugfs.args(["-w", "-R", &request]).arg(disk.path())).success();
    mount(disk.path(), &mountpoint, "ext4");
    csi.spawn(csi.command(&there));

    let listed = csi.call(ControllerListVolumeHealthRequest::default());
    let listed = listed
        .expect("ControllerListVolumeHealth")
        .entries
        .into_iter();
    let mut told: Vec<_> = listed
        .map(|it| (it.volume_id, it.health_statuses[0].reason.clone()))
        .collect();
    told.sort();
    let mut expected = [(damaged, "ImageUnreadable"), (missing, "ImageMissing")]
        .map(|(volume, reason)| (volume.id.clone(), reason.to_owned()));
    expected.sort();
    assert_eq!(told, expected);
    let place = csi.target("pod", "pv");
    let health = csi.call_ok(damaged.health(&place));
    let inaccessible = VolumeHealthErrorType::Inaccessible;
    assert_eq!(
        problems(health.volume_health, damaged),
        [(inaccessible, "ImageUnreadable".to_owned())]
    );
    csi.kill();
    unmount(&mountpoint);
}

#[test]
fn storage_that_is_gone_is_told() {
    let scene = Scene::new();
    let images = scene.data().join("images");
    let aside = scene.data().join("aside");
    fs::rename(&images, &aside).expect("mv");
    fs::create_dir(&images).expect("mkdir");
    let storage = scene.call(NodeGetStorageHealthRequest::default());
    let told = storage.expect("NodeGetStorageHealth").backend_health;
    let told: Vec<_> = told
        .iter()
        .map(|it| (it.status(), it.reason.as_str()))
        .collect();
    assert_eq!(
        told,
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
fn what_is_left_out_is_not_served() {
    let arguments = [
        "--without",
        "GET_VOLUME_HEALTH",
        "--without",
        "GET_STORAGE_HEALTH",
    ];
    let scene = Scene::with(&arguments);
    let volume = scene.volume("pv", filesystem("ext4"));
    let place = scene.target("pod", "pv");
    refused(scene.call(volume.health(&place)), Code::Unimplemented);
    refused(
        scene.call(NodeGetStorageHealthRequest::default()),
        Code::Unimplemented,
    );
    refused(
        scene.call(ControllerListVolumeHealthRequest::default()),
        Code::Unimplemented,
    );
    let one = ControllerGetVolumeHealthRequest {
        volume_id: volume.id,
        ..Default::default()
    };
    refused(scene.call(one), Code::Unimplemented);
}

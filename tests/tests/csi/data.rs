//! A data directory with defects: no data are lost, and the other volumes keep working.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_proto::csi::v1::{GetCapacityRequest, ProbeRequest};
use runcrust_tests::csi::{CsiVolume, block, create_request, filesystem};
use runcrust_tests::{Csi, Delegate, Node, Run, mounts};
use tonic::Code;

use crate::expect_error;
use crate::scene::{Scene, read, write};

fn record(scene: &Scene, volume: &CsiVolume) -> PathBuf {
    scene
        .data()
        .join("volumes")
        .join(format!("{}.json", volume.id))
}

/// Creates a volume, writes a file to it, and unstages it.
fn volume_with_data(scene: &Scene) -> CsiVolume {
    let volume = scene.staged("pv", filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    scene.unpublish_and_unstage(&volume, &[&target]);
    volume
}

/// Sets the immutable attribute (chattr(1)) of a file. Dropping the value removes it.
pub(crate) struct ImmutableFile(PathBuf);

impl ImmutableFile {
    pub(crate) fn make(path: &Path) -> Self {
        let _ = Run::capture(Command::new("chattr").arg("+i").arg(path)).success();
        Self(path.to_owned())
    }
}

impl Drop for ImmutableFile {
    fn drop(&mut self) {
        let _ = Run::capture(Command::new("chattr").arg("-i").arg(&self.0));
    }
}

#[test]
fn an_image_without_a_record_is_not_removed() {
    let scene = Scene::new();
    let volume = volume_with_data(&scene);
    let record = record(&scene, &volume);
    // On the same file system as the data directory.
    let aside = scene.data().with_extension("aside");
    fs::rename(&record, &aside).unwrap();
    let request = create_request("pv", filesystem("ext4"));
    let error = expect_error(scene.call(request.clone()), Code::Internal);
    assert!(error.contains("without a record"), "{error}");
    expect_error(scene.call(volume.delete()), Code::Internal);
    fs::rename(&aside, &record).unwrap();
    scene.call(request).unwrap();
    scene.call(volume.stage()).unwrap();
    let target = scene.publish(&volume, "pod");
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_data_directory_below_a_mount_is_not_used() {
    let node = Node::root_only(Delegate::Runc, "");
    // The data directory is below a directory of the test. Mounts below that directory are removed with it.
    let data = node.dir().subdir("data");
    let data = data.join("csi");
    let csi = Csi::with(&node, &["--data-dir", data.to_str().unwrap()]);
    let request = create_request("pv", filesystem("ext4"));
    csi.call(request.clone()).unwrap();
    csi.call(ProbeRequest::default()).unwrap();
    mounts::tmpfs(&data);
    let error = expect_error(
        csi.call(create_request("other", filesystem("ext4"))),
        Code::Internal,
    );
    assert!(error.contains("mounted over it"), "{error}");
    expect_error(csi.call(request), Code::Internal);
    expect_error(csi.call(ProbeRequest::default()), Code::Internal);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    nix::mount::umount(&data).unwrap();
    csi.call(ProbeRequest::default()).unwrap();
}

#[test]
fn growth_does_not_hide_a_truncated_image() {
    let scene = Scene::new();
    let volume = volume_with_data(&scene);
    let image = File::options()
        .write(true)
        .open(scene.image(&volume.id))
        .unwrap();
    image.set_len(16 << 20).unwrap();
    let error = expect_error(scene.call(volume.grow(64 << 20)), Code::FailedPrecondition);
    assert!(error.contains("it was truncated"), "{error}");
    assert_eq!(image.metadata().unwrap().len(), 16 << 20);
}

#[test]
fn an_unreadable_record_affects_one_volume_only() {
    let scene = Scene::new();
    let bad = scene.volume("bad", block());
    fs::write(record(&scene, &bad), r#"{"version": 2}"#).unwrap();
    let volume = scene.staged("pv", filesystem("ext4"));
    assert_eq!(scene.ids(), [volume.id.as_str()]);
    scene.call(GetCapacityRequest::default()).unwrap();
    scene.call(volume.grow(64 << 20)).unwrap();
    let target = scene.publish(&volume, "pod");
    for _ in 0..2 {
        scene.call(volume.unpublish(&target)).unwrap();
    }
    let error = expect_error(scene.call(bad.stage()), Code::Internal);
    assert!(error.contains(&bad.id), "{error}");
    scene.restart(&[]);
    scene.call(volume.unstage()).unwrap();
}

#[test]
fn the_driver_starts_beside_an_image_it_cannot_remove() {
    let (scene, volume) = Scene::with_volume(block());
    let other = scene.volume("other", block());
    let immutable = ImmutableFile::make(&scene.image(&volume.id));
    expect_error(scene.call(volume.delete()), Code::Internal);
    scene.restart(&[]);
    assert_eq!(
        scene.ids(),
        [other.id.as_str()],
        "the deleted volume is not listed"
    );
    drop(immutable);
    scene.call(volume.delete()).unwrap();
    scene.call(other.delete()).unwrap();
    assert_eq!(scene.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn on_a_full_disk_all_volumes_can_be_removed() {
    let node = Node::root_only(Delegate::Runc, "");
    let small = node.dir().subdir("small");
    let disk = runcrust_tests::LoopDevice::ext4(node.dir(), 96);
    mounts::mount(disk.path(), &small, "ext4");
    let data = small.join("csi");
    let csi = Csi::with(&node, &["--data-dir", data.to_str().unwrap()]);
    let volumes = [
        csi.volume("raw", block()),
        csi.volume("plain", filesystem("ext4")),
        // With the earlier draft, only the record shows that kubelet has published the volume.
        csi.volume("draft", filesystem("ext4")),
    ];
    let target = |volume: &CsiVolume| csi.target("pod", &volume.id);
    for volume in &volumes {
        csi.call(volume.stage()).unwrap();
        let mut publish = volume.publish(&target(volume));
        if volume.id == volumes[2].id {
            publish.runtime_supported_filesystems = vec!["ext4".to_owned()];
        }
        csi.call(publish).unwrap();
    }
    let filler = File::create(data.with_file_name("filler")).unwrap();
    let zeros = vec![0; 4096];
    let mut at = 0;
    let mut fill = || {
        while filler.write_all_at(&zeros, at).is_ok() {
            at += 4096;
        }
    };
    for volume in &volumes {
        fill();
        csi.call(volume.unpublish(&target(volume))).unwrap();
        fill();
        csi.call(volume.unstage()).unwrap();
        assert_eq!(csi.devices(&volume.id), Vec::<PathBuf>::new());
        // An unstaged volume cannot be published without being staged first.
        expect_error(
            csi.call(volume.publish(&target(volume))),
            Code::FailedPrecondition,
        );
        fill();
        csi.call(volume.delete()).unwrap();
        let image = data.join("images").join(format!("{}.img", volume.id));
        assert!(!image.exists());
    }
    csi.kill();
    drop(filler);
    mounts::unmount(&small);
}

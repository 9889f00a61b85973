//! Block volumes: the device itself is published at the target path.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use runcrust_tests::csi::{block, filesystem};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use crate::expect_error;
use crate::scene::Scene;

const DATA: &[u8] = b"not a file system";

fn write_data(device: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut device = File::options().write(true).open(device)?;
    device.seek(SeekFrom::Start(1 << 20))?;
    device.write_all(data)?;
    device.sync_all()
}

fn read_data(device: &Path) -> Vec<u8> {
    let mut device = File::open(device).expect("a device");
    device.seek(SeekFrom::Start(1 << 20)).expect("lseek");
    let mut data = vec![0; DATA.len()];
    device.read_exact(&mut data).expect("the data");
    data
}

#[test]
fn a_pod_gets_the_device_and_its_data_stay() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod-a");
    let node = fs::symlink_metadata(&target).expect("the target");
    assert!(node.file_type().is_block_device(), "{node:?}");
    write_data(&target, DATA).expect("a writable device");
    scene
        .call(volume.publish(&target))
        .expect("the repeated call");
    assert_eq!(mounts_below(&target), [target.as_path()]);
    let second = scene.publish(&volume, "pod-b");
    assert_eq!(read_data(&second), DATA, "a second pod");
    scene.unpublish_and_unstage(&volume, &[&target, &second]);
    assert!(!target.exists() && !second.exists());

    scene.call_ok(volume.stage());
    scene.call_ok(volume.publish(&target));
    assert_eq!(read_data(&target), DATA, "staged again");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn the_device_has_the_size_of_the_volume() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    let size = File::open(&target).and_then(|mut device| device.seek(SeekFrom::End(0)));
    assert_eq!(i64::try_from(size.expect("a size")), Ok(volume.capacity));
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_reader_cannot_write() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.readonly = true;
    scene.call_ok(request.clone());
    scene.call(request).expect("the repeated call");
    assert!(
        write_data(&target, DATA).is_err(),
        "the device is read-only"
    );
    expect_error(scene.call(volume.publish(&target)), Code::AlreadyExists);
    scene.call_ok(volume.unpublish(&target));
    scene
        .call(volume.publish(&target))
        .expect("a writer afterwards");
    write_data(&target, DATA).expect("a writable device");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_single_writer_mode_allows_one_pod() {
    let scene = Scene::new();
    let mut capability = block();
    let mode = capability.access_mode.as_mut().expect("a mode");
    mode.set_mode(Mode::SingleNodeSingleWriter);
    let volume = scene.staged("pv", capability);
    let first = scene.publish(&volume, "pod-a");
    let second = scene.target("pod-b", "pv");
    expect_error(
        scene.call(volume.publish(&second)),
        Code::FailedPrecondition,
    );
    assert!(!second.exists());
    scene.remove_volume(&volume, &[&first]);
}

#[test]
fn a_mount_outlives_the_driver() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    write_data(&target, DATA).expect("a writable device");
    scene.restart(&[]);
    expect_error(scene.call(volume.unstage()), Code::FailedPrecondition);
    scene
        .call(volume.publish(&target))
        .expect("kubelet publishes again");
    assert_eq!(mounts_below(&target), [target.as_path()]);
    assert_eq!(read_data(&target), DATA);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn data_without_a_file_system_are_not_formatted() {
    let scene = Scene::new();
    let mut request = runcrust_tests::csi::create_request("pv", filesystem("ext4"));
    request.volume_capabilities = vec![block(), filesystem("ext4")];
    let mut volume = scene.create_volume(request);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    write_data(&target, DATA).expect("a writable device");
    scene.unpublish_and_unstage(&volume, &[&target]);
    volume.capability = filesystem("ext4");
    let message = expect_error(scene.call(volume.stage()), Code::FailedPrecondition);
    assert!(message.contains(&volume.id), "{message}");
    volume.capability = block();
    scene.call_ok(volume.stage());
    scene.call_ok(volume.publish(&target));
    assert_eq!(read_data(&target), DATA);
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_block_volume_cannot_be_deferred() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.defer_fs_ops = true;
    let message = expect_error(scene.call(request), Code::InvalidArgument);
    assert!(message.contains("defer_fs_ops"), "{message}");
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    scene.remove_volume(&volume, &[]);
}

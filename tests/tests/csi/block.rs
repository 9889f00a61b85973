//! Block volumes: the device itself, at the target path.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use runcrust_tests::csi::{block, filesystem};
use runcrust_tests::host::mounts_below;
use tonic::Code;

use crate::refused;
use crate::scene::Scene;

const DATA: &[u8] = b"not a file system";

fn put(device: &Path, data: &[u8]) -> std::io::Result<()> {
    let mut device = File::options().write(true).open(device)?;
    device.seek(SeekFrom::Start(1 << 20))?;
    device.write_all(data)?;
    device.sync_all()
}

fn get(device: &Path) -> Vec<u8> {
    let mut device = File::open(device).expect("a device");
    device.seek(SeekFrom::Start(1 << 20)).expect("lseek");
    let mut data = vec![0; DATA.len()];
    device.read_exact(&mut data).expect("its data");
    data
}

#[test]
fn a_pod_has_the_device_and_its_data_stay() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod-a");
    let node = fs::symlink_metadata(&target).expect("the target");
    assert!(node.file_type().is_block_device(), "{node:?}");
    put(&target, DATA).expect("it can be written");
    scene.call(volume.publish(&target)).expect("again");
    assert_eq!(mounts_below(&target), [target.as_path()]);
    let second = scene.publish(&volume, "pod-b");
    assert_eq!(get(&second), DATA, "a second pod");
    scene.take_back(&volume, &[&target, &second]);
    assert!(!target.exists() && !second.exists());

    scene.call_ok(volume.stage());
    scene.call_ok(volume.publish(&target));
    assert_eq!(get(&target), DATA, "staged again");
    scene.put_away(&volume, &[&target]);
}

#[test]
fn it_has_the_volumes_size() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    let size = File::open(&target).and_then(|mut device| device.seek(SeekFrom::End(0)));
    assert_eq!(i64::try_from(size.expect("its size")), Ok(volume.capacity));
    scene.put_away(&volume, &[&target]);
}

#[test]
fn a_reader_cannot_write() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.readonly = true;
    scene.call_ok(request.clone());
    scene.call(request).expect("again");
    assert!(put(&target, DATA).is_err(), "it was written");
    refused(scene.call(volume.publish(&target)), Code::AlreadyExists);
    scene.call_ok(volume.unpublish(&target));
    scene
        .call(volume.publish(&target))
        .expect("a writer afterwards");
    put(&target, DATA).expect("it can be written");
    scene.put_away(&volume, &[&target]);
}

#[test]
fn one_pod_means_one() {
    let scene = Scene::new();
    let mut capability = block();
    let mode = capability.access_mode.as_mut().expect("a mode");
    mode.set_mode(Mode::SingleNodeSingleWriter);
    let volume = scene.staged("pv", capability);
    let first = scene.publish(&volume, "pod-a");
    let second = scene.target("pod-b", "pv");
    refused(
        scene.call(volume.publish(&second)),
        Code::FailedPrecondition,
    );
    assert!(!second.exists());
    scene.put_away(&volume, &[&first]);
}

#[test]
fn its_mount_outlives_the_driver() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.publish(&volume, "pod");
    put(&target, DATA).expect("it can be written");
    scene.restart(&[]);
    refused(scene.call(volume.unstage()), Code::FailedPrecondition);
    scene
        .call(volume.publish(&target))
        .expect("kubelet publishes again");
    assert_eq!(mounts_below(&target), [target.as_path()]);
    assert_eq!(get(&target), DATA);
    scene.put_away(&volume, &[&target]);
}

#[test]
fn what_holds_no_file_system_gets_none() {
    let scene = Scene::new();
    let mut request = runcrust_tests::csi::create_request("pv", filesystem("ext4"));
    request.volume_capabilities = vec![block(), filesystem("ext4")];
    let mut volume = scene.create_volume(request);
    scene.call_ok(volume.stage());
    let target = scene.publish(&volume, "pod");
    put(&target, DATA).expect("it can be written");
    scene.take_back(&volume, &[&target]);
    volume.capability = filesystem("ext4");
    let message = refused(scene.call(volume.stage()), Code::FailedPrecondition);
    assert!(message.contains(&volume.id), "{message}");
    volume.capability = block();
    scene.call_ok(volume.stage());
    scene.call_ok(volume.publish(&target));
    assert_eq!(get(&target), DATA);
    scene.put_away(&volume, &[&target]);
}

#[test]
fn it_cannot_be_deferred() {
    let (scene, volume) = Scene::with_staged(block());
    let target = scene.target("pod", "pv");
    let mut request = volume.publish(&target);
    request.defer_fs_ops = true;
    let message = refused(scene.call(request), Code::InvalidArgument);
    assert!(message.contains("defer_fs_ops"), "{message}");
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    scene.put_away(&volume, &[]);
}

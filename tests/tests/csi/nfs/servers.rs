//! Volumes on a running server.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crust_proto::csi::v1::NodePublishVolumeRequest;
use crust_proto::csi::v1::volume_capability::access_mode::Mode;
use crust_proto::csi::v1::volume_usage::Unit;
use runcrust_tests::container::end;
use runcrust_tests::csi::{CsiVolume, mount_of};
use runcrust_tests::host::mounts_below;
use runcrust_tests::hostile_nfs_server::{Attack, Damage, Procedure};
use runcrust_tests::nfs_server::{NfsServer, RECOVERY_TIMEOUT};
use runcrust_tests::node::utf8;
use runcrust_tests::{HostileNfsServer, POD, Run, on_each_delegate, wait_until};
use tonic::Code;

use super::{DEFER, create_request, driver, static_volume, with_mode};
use crate::scene::deferring_driver;
use crate::{assert_nothing_left, expect_error};

const OTHER_POD: &str = "cccccccc-1111-2222-3333-000000000001";

/// Returns a volume that is a directory on the server.
fn volume_on(server: &NfsServer, more: &[(&str, &str)]) -> CsiVolume {
    let (address, share) = (server.address(), server.directory().display().to_string());
    let attributes = [&[("server", &*address), ("share", &*share)], more].concat();
    static_volume("pv-1", &attributes)
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_pod_gets_a_deferred_share(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &["--driver", "nfs"]);
        let server = NfsServer::start(node.dir());
        fs::create_dir(server.directory().join("below")).unwrap();
        let mut volume = volume_on(&server, &[DEFER, ("subDir", "below")]);
        mount_of(&mut volume.capability).volume_mount_group = "2000".into();
        let target = csi.target(POD, "pv-1");
        csi.call(volume.publish(&target)).unwrap();
        csi.call(volume.publish(&target)).unwrap();
        expect_error(csi.call(volume.stats(&target)), Code::FailedPrecondition);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("echo hello > /data/file; stat -c '%g %a' /data"), "2000 2775");
        assert_eq!(fs::read_to_string(server.directory().join("below/file")).unwrap(), "hello\n");
        assert_eq!(mounts_below(&target), Vec::<PathBuf>::new(), "nothing on the host");
        let stats = csi.call(volume.stats(&target)).unwrap();
        assert!(stats.usage[0].total > 0 && !stats.volume_condition.unwrap().abnormal);
        // A restarted driver knows the publication, and kubelet repeats it.
        csi.restart(&["--driver", "nfs"]);
        csi.call(volume.publish(&target)).unwrap();
        let other = csi.target(OTHER_POD, "pv-1");
        csi.call(volume.publish(&other)).unwrap();
        csi.call(volume.unpublish(&other)).unwrap();
        expect_error(csi.call(volume.unpublish(&target)), Code::FailedPrecondition);
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
        expect_error(csi.call(volume.stats(&target)), Code::NotFound);
        assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
        assert_nothing_left(&node);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_created_share_is_used_and_deleted(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &["--driver", "nfs"]);
        let server = NfsServer::start(node.dir());
        let (address, share) = (server.address(), server.directory().display().to_string());
        let parameters = [("server", &*address), ("share", &*share), ("subDir", "k8s/${pv.metadata.name}"), DEFER];
        let volume = csi.provision_volume(create_request("pvc-1", &parameters));
        let again = csi.provision_volume(create_request("pvc-1", &parameters));
        assert_eq!((&again.id, &again.context), (&volume.id, &volume.context));
        let directory = server.directory().join("k8s/pvc-1");
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o7777, 0o777);
        let target = csi.target(POD, "pv-1");
        csi.call(volume.publish(&target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("mkdir -p /data/a/b && echo x > /data/a/b/file && ln -s /etc /data/link");
        let message = expect_error(csi.call(volume.delete()), Code::FailedPrecondition);
        assert!(message.contains("NodeUnpublishVolume"), "{message}");
        end([app, sandbox]);
        csi.call(volume.unpublish(&target)).unwrap();
        assert!(directory.join("a/b/file").exists());
        csi.call(volume.delete()).unwrap();
        csi.call(volume.delete()).unwrap();
        assert!(!directory.exists() && server.directory().exists());
        assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
    }
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_plain_share_is_mounted_for_each_pod() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    let mut volume = volume_on(&server, &[]);
    mount_of(&mut volume.capability).volume_mount_group = "2000".into();
    mount_of(&mut volume.capability).mount_flags = vec!["vers=4.1,noexec".to_owned()];
    let (writer, reader) = (csi.target(POD, "pv-1"), csi.target(OTHER_POD, "pv-1"));
    csi.call_ok(volume.publish(&writer));
    csi.call_ok(volume.publish(&writer));
    let read_only = NodePublishVolumeRequest {
        readonly: true,
        ..volume.publish(&reader)
    };
    csi.call_ok(read_only);
    expect_error(csi.call(volume.publish(&reader)), Code::AlreadyExists);
    fs::write(writer.join("file"), "data").unwrap();
    assert_eq!(fs::read(reader.join("file")).unwrap(), b"data");
    assert!(fs::write(reader.join("new"), "").is_err());
    assert_eq!(fs::metadata(server.directory()).unwrap().gid(), 2000);
    let mounts = runcrust_tests::host::mounts();
    let line = &mounts.iter().find(|it| it.point == writer).unwrap().line;
    assert!(
        line.contains("vers=4.1") && line.contains("noexec"),
        "{line}"
    );
    let stats = csi.call_ok(volume.stats(&writer));
    assert_eq!(stats.usage[0].unit(), Unit::Bytes);
    assert!(stats.usage[0].total > 0 && !stats.volume_condition.unwrap().abnormal);
    csi.restart(&["--driver", "nfs"]);
    for target in [&writer, &reader] {
        csi.call_ok(volume.unpublish(target));
        assert!(!target.exists());
    }
    assert!(server.directory().join("file").exists());
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn the_access_mode_of_a_share_is_kept() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    let mut volume = volume_on(&server, &[]);
    let (one, two) = (csi.target(POD, "pv-1"), csi.target(OTHER_POD, "pv-1"));
    volume.capability = with_mode(Mode::SingleNodeSingleWriter);
    csi.call_ok(volume.publish(&one));
    let message = expect_error(csi.call(volume.publish(&two)), Code::FailedPrecondition);
    assert!(message.contains("ReadWriteOncePod"), "{message}");
    let mut moved = volume.clone();
    let _ = moved
        .context
        .insert("subDir".to_owned(), "other".to_owned());
    let message = expect_error(csi.call(moved.publish(&one)), Code::AlreadyExists);
    assert!(
        message.contains("/other") && message.contains("hint: "),
        "{message}"
    );
    csi.call_ok(volume.unpublish(&one));
    volume.capability = with_mode(Mode::MultiNodeReaderOnly);
    csi.call_ok(volume.publish(&two));
    assert!(fs::write(two.join("file"), "").is_err());
    csi.call_ok(volume.unpublish(&two));
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_share_of_a_blocked_server_is_unpublished() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    let volume = volume_on(&server, &[]);
    let target = csi.target(POD, "pv-1");
    csi.call_ok(volume.publish(&target));
    server.block();
    let started = Instant::now();
    csi.call_ok(volume.unpublish(&target));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(!target.exists());
    let message = expect_error(csi.call(volume.publish(&target)), Code::Internal);
    assert!(
        message.contains("hint: check that the server runs"),
        "{message}"
    );
    server.unblock();
    csi.call_ok(volume.publish(&target));
    csi.call_ok(volume.unpublish(&target));
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn stats_of_a_plain_share_do_not_wait_for_its_server() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    let volume = volume_on(&server, &[]);
    let target = csi.target(POD, "pv-1");
    csi.call_ok(volume.publish(&target));
    let threads = || {
        let threads = fs::read_dir(format!("/proc/{}/task", csi.pid()));
        threads.unwrap().count()
    };
    let expect_no_answer = || {
        let stats = csi.call_ok(volume.stats(&target));
        let condition = stats.volume_condition.unwrap();
        assert!(condition.abnormal && stats.usage.is_empty());
        for part in ["hasn't answered within 5 seconds", &server.share()] {
            let message = &condition.message;
            assert!(message.contains(part), "{part:?} isn't in: {message}");
        }
    };
    server.block();
    expect_no_answer();
    let before = threads();
    let repetitions = 20;
    for _ in 0..repetitions {
        expect_no_answer();
    }
    let after = threads();
    assert!(after < before + repetitions / 2, "{before}, then {after}");

    // The first call still has the share open.
    let started = Instant::now();
    csi.call_ok(volume.unpublish(&target));
    assert!(started.elapsed() < Duration::from_secs(30));
    assert!(!target.exists());
    server.unblock();
    csi.call_ok(volume.publish(&target));
    wait_until("the first call to end", RECOVERY_TIMEOUT, || {
        let stats = csi.call_ok(volume.stats(&target));
        !stats.volume_condition.unwrap().abnormal
    });
    csi.call_ok(volume.unpublish(&target));
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_share_that_a_program_uses_is_unpublished() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    fs::write(server.directory().join("file"), "data").unwrap();
    fs::create_dir(server.directory().join("below")).unwrap();
    let volume = volume_on(&server, &[]);
    let target = csi.target(POD, "pv-1");
    csi.call_ok(volume.publish(&target));
    let mut file = File::open(target.join("file")).unwrap();
    // A mount of somebody else would go with the share.
    let below = target.join("below");
    let mount = ["-t", "tmpfs", "tmpfs", utf8(&below)];
    let _ = Run::capture(Command::new("mount").args(mount)).success();
    let message = expect_error(
        csi.call(volume.unpublish(&target)),
        Code::FailedPrecondition,
    );
    let command = format!("umount {}", below.display());
    assert!(message.contains(&command), "{message}");
    assert_eq!(mounts_below(&target), [target.clone(), below.clone()]);
    let _ = Run::capture(Command::new("umount").arg(&below)).success();

    csi.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
    let mut data = String::new();
    file.read_to_string(&mut data).unwrap();
    assert_eq!(data, "data");
}

/// The timeout of a mount, with the time that a slow machine may take.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(110 + 30);

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_mount_that_hangs_never_appears() {
    let (csi, node) = driver();
    let no_reply = Attack::Damaged(Procedure::SetAttributes, Damage::Missing);
    let server = HostileNfsServer::start(no_reply, &node.dir().join("outside"));
    let (address, share) = server.share().split_once(':').unwrap();
    let mut volume = static_volume("pv-1", &[("server", address), ("share", share)]);
    let mount = mount_of(&mut volume.capability);
    mount.volume_mount_group = "2000".into();
    mount.mount_flags = vec![server.options()];
    let target = csi.target(POD, "pv-1");
    let started = Instant::now();
    let message = expect_error(csi.call(volume.publish(&target)), Code::DeadlineExceeded);
    assert!(started.elapsed() < MOUNT_TIMEOUT);
    for part in [
        "volume pv-1: mounting 127.0.0.1:/export hasn't ended",
        "check that the server answers",
    ] {
        assert!(message.contains(part), "{part:?} isn't in: {message}");
    }
    let message = expect_error(csi.call(volume.publish(&target)), Code::Aborted);
    assert!(
        message.contains("mounting 127.0.0.1:/export for an earlier call"),
        "{message}"
    );
    assert_eq!(mounts_below(&target), Vec::<PathBuf>::new());
    // The first call ends now, at the latest when a repeated one is carried out.
    server.attack(Attack::Nothing);
    wait_until("the share to be mounted", RECOVERY_TIMEOUT, || {
        match csi.call(volume.publish(&target)) {
            Ok(_) => true,
            Err(status) => {
                assert_eq!(status.code(), Code::Aborted, "{status}");
                false
            }
        }
    });
    assert_eq!(mounts_below(&target).len(), 1, "mounted once");
    csi.call_ok(volume.unpublish(&target));
    assert!(!target.exists());
    assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_deleted_share_keeps_other_exports() {
    let (csi, node) = driver();
    let server = NfsServer::start(node.dir());
    let (address, share) = (server.address(), server.directory().display().to_string());
    let parameters = [("server", &*address), ("share", &*share)];
    let volume = csi.provision_volume(create_request("pvc-1", &parameters));
    let directory = server.directory().join("pvc-1");
    fs::create_dir_all(directory.join("a/other")).unwrap();
    fs::write(directory.join("a/file"), "data").unwrap();
    server.export_below("pvc-1/a/other");
    let kept = directory.join("a/other/kept");
    server.inside(&["touch", utf8(&kept)]);
    let message = expect_error(csi.call(volume.delete()), Code::Internal);
    for part in ["EXDEV", "\"pvc-1/a/other\"", "unmount it on the server"] {
        assert!(message.contains(part), "{part:?} isn't in: {message}");
    }
    server.inside(&["test", "-e", utf8(&kept)]);
    server.unexport_below("pvc-1/a/other");
    csi.call_ok(volume.delete());
    csi.call_ok(volume.delete());
    assert!(!directory.exists() && server.directory().exists());
}

#[test]
#[ignore = "needs NFS; runs in the guest: make vm-test"]
fn a_server_that_maps_root_needs_no_group() {
    let (csi, node) = driver();
    let server = NfsServer::start_with(node.dir(), "rw,root_squash");
    let (address, share) = (server.address(), server.directory().display().to_string());
    let parameters = [("server", &*address), ("share", &*share)];
    let message = expect_error(
        csi.call(create_request("pvc-1", &parameters)),
        Code::Internal,
    );
    assert!(
        message.contains("EACCES") && message.contains("no_root_squash"),
        "{message}"
    );
    fs::set_permissions(server.directory(), fs::Permissions::from_mode(0o777)).unwrap();
    let mut volume = csi.provision_volume(create_request("pvc-1", &parameters));
    let target = csi.target(POD, "pv-1");
    csi.call_ok(volume.publish(&target));
    fs::write(target.join("file"), "data").unwrap();
    csi.call_ok(volume.unpublish(&target));
    mount_of(&mut volume.capability).volume_mount_group = "2000".into();
    let message = expect_error(csi.call(volume.publish(&target)), Code::FailedPrecondition);
    assert!(
        message.contains("EPERM") && message.contains("no_root_squash"),
        "{message}"
    );
    csi.call_ok(volume.unpublish(&target));
    csi.call_ok(volume.delete());
    assert!(!server.directory().join("pvc-1").exists());
}

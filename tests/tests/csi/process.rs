//! The driver's process: its start and end, and the state that it finds.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::csi::{DRIVER, filesystem};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::process::{descriptors, is_alive};
use runcrust_tests::wait_until;

use crate::scene::{Scene, read, write};

#[test]
fn a_second_driver_with_the_same_data_does_not_start() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let other = format!(
        "unix://{}",
        scene.node.handler().path().with_file_name("o").display()
    );
    let run = scene.run_another(&["--endpoint", &other]);
    assert!(!run.status.success(), "{run}");
    assert!(run.stderr.contains("--data-dir"), "a hint: {run}");
    scene.remove_volume(&volume, &[]);
}

/// If a driver is killed between the clone and the exec of a program that it starts, that process holds the lock.
#[test]
fn a_start_waits_for_the_lock_of_a_killed_driver() {
    let scene = Scene::new();
    scene.kill();
    let path = scene.data().join("lock");
    let lock = File::open(&path).expect("the lock file");
    lock.lock().expect("flock");
    let mut driver = scene.spawn_unmanaged(scene.command(&[]));
    let pid = driver.id().cast_signed();
    let open_files = format!("/proc/{pid}/fd");
    wait_until("the driver to open the lock file", WAIT_TIMEOUT, || {
        let mut files = fs::read_dir(&open_files).into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|link| link == path))
    });
    drop(lock);
    scene.wait_until_listening(|| is_alive(pid));
    driver.kill().expect("kill");
    driver.wait().expect("wait");
}

#[test]
fn a_stopped_driver_leaves_pods_their_volumes() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let device = scene.device(&volume.id);
    let ended = scene.stop();
    assert!(ended.success(), "{ended}: {}", scene.log());
    assert_eq!(read(&target, "file"), "data");
    scene.spawn(scene.command(&[]));
    assert_eq!(scene.device(&volume.id), device);
    scene.remove_volume(&volume, &[&target]);
}

/// `crust_ops` has the same server, and the suite `ops` tests more of it.
#[test]
fn hundreds_of_silent_connections_block_no_client() {
    const DESCRIPTORS: usize = 128;
    let scene = Scene::new();
    let ended = scene.stop();
    assert!(ended.success(), "{ended}: {}", scene.log());
    let command = scene.command(&[]);
    let mut limited = Command::new("prlimit");
    limited
        .arg(format!("--nofile={DESCRIPTORS}"))
        .arg(command.get_program())
        .args(command.get_args());
    scene.spawn(limited);
    let connect = || UnixStream::connect(scene.socket()).expect("connect");
    // Clients that disconnect within HTTP/2's preface.
    for _ in 0..3 {
        connect().write_all(b"PRI").expect("write");
    }
    let _mute: Vec<UnixStream> = (0..3 * DESCRIPTORS).map(|_| connect()).collect();
    let _ = scene.volume("pv", filesystem("ext4"));
    assert!(descriptors(scene.pid()) < DESCRIPTORS);
    assert!(!scene.log().contains("os error 24"), "{}", scene.log());
}

#[test]
fn directories_and_socket_are_only_for_root() {
    let (scene, volume) = Scene::with_volume(filesystem("ext4"));
    let mode = |path: PathBuf| fs::metadata(path).expect("stat").permissions().mode() & 0o077;
    assert_eq!(mode(scene.data().to_owned()), 0);
    assert_eq!(mode(scene.image(&volume.id)), 0);
    assert_eq!(mode(scene.socket().to_owned()), 0);
}

#[test]
fn invalid_arguments_are_refused_at_the_start() {
    let scene = Scene::new();
    let nowhere = scene.data().with_file_name("other");
    let nowhere = nowhere.to_str().expect("UTF-8");
    for wrong in [
        ["--endpoint", "tcp://127.0.0.1:1"],
        ["--endpoint", "unix://relative"],
        ["--data-dir", "relative"],
        ["--driver-name", "not a domain"],
        ["--node-id", ""],
        ["--capacity", "all"],
        ["--max-volumes", "all"],
        ["--without", "EVERYTHING"],
        ["--log-level", "loud"],
    ] {
        let mut arguments = vec!["--data-dir", nowhere];
        arguments.retain(|_| wrong[0] != "--data-dir");
        arguments.extend(wrong);
        let run = scene.run_another(&arguments);
        assert!(!run.status.success(), "{wrong:?}: {run}");
        assert!(run.stderr.contains(wrong[0]), "{wrong:?}: {run}");
    }
    assert!(!fs::exists(nowhere).expect("stat"));
}

/// A driver with another name finds the same volumes.
#[test]
fn all_state_is_in_the_data_directory() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.publish(&volume, "pod");
    write(&target, "file", "data");
    let name = format!("other.{DRIVER}");
    scene.restart(&["--driver-name", &name]);
    assert_eq!(scene.ids(), [volume.id.as_str()]);
    scene.call_ok(volume.publish(&target));
    assert_eq!(read(&target, "file"), "data");
    scene.remove_volume(&volume, &[&target]);
}

#[test]
fn a_path_cannot_forge_a_line_of_the_log() {
    let (scene, volume) = Scene::with_staged(filesystem("ext4"));
    let target = scene.target("pod", "pv\nforged");
    scene.call_ok(volume.publish(&target));
    scene.call_ok(volume.unpublish(&target));
    fs::create_dir_all(target.join("directory")).unwrap();
    write(&target, "file", "somebody's");
    scene.call_ok(volume.unpublish(&target));
    let log = scene.log();
    assert!(log.contains("forged"), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "{log}");
    scene.remove_volume(&volume, &[&target]);
}

//! Limits on what clients of the sockets may stage: at paths of CSI volumes, over empty directories, and up to the
//! configured number and size.

use std::fs;
use std::path::{Path, PathBuf};

use crust_proto::runtime::v1alpha1::RuntimePublishVolumeRequest;
use crust_proto::v1::RuntimeStageVolumeRequest;
use nix::sys::signal::Signal;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{Delegate, LoopDevice, Node, Ops, TestDir, mounts, wait_until};
use serde_json::json;
use tonic::Code::{FailedPrecondition, InvalidArgument, ResourceExhausted};

use crate::storage::publish;
use crate::{expect_error, file_identities, mount_info, reason};

/// A publish for an unknown sandbox. Every other reason to refuse it is reported first.
fn publish_request(target: &Path, device: &LoopDevice) -> RuntimePublishVolumeRequest {
    RuntimePublishVolumeRequest {
        sandbox_id: "no-such-sandbox".to_owned(),
        host_volume_id: utf8(device.path()).to_owned(),
        host_target_path: utf8(target).to_owned(),
        file_system: device.fstype().to_owned(),
        ..RuntimePublishVolumeRequest::default()
    }
}

fn with_options(target: &Path, device: &LoopDevice, options: &[&str]) -> RuntimeStageVolumeRequest {
    RuntimeStageVolumeRequest {
        mount_flags: options.iter().map(|option| (*option).to_owned()).collect(),
        ..stage_request(target, device)
    }
}

/// Returns the number of entries.
fn entries(node: &Node) -> usize {
    let listed = fs::read_dir(node.handler().crust_root());
    listed.map_or(0, Iterator::count)
}

#[test]
fn only_csi_volumes_and_paths_below_a_root_are_staged() {
    let dir = TestDir::new();
    let root = dir.subdir("roots");
    let node = Node::trusted(Delegate::Runc, &format!("match_roots = [{root:?}]"));
    let ops = Ops::start(&node);
    let device = node.ext4();
    let kubelet = node.handler().kubelet_dir();
    let pod = kubelet.join("pods/u/volumes");
    for target in [
        PathBuf::from("/etc"),
        "/proc".into(),
        "/dev/shm".into(),
        root.clone(),
        kubelet.clone(),
        kubelet.join("plugins/kubernetes.io/csi/other/globalmount"),
        pod.join("kubernetes.io~projected/kube-api-access-x"),
        pod.join("kubernetes.io~csi/pv"),
        pod.join("kubernetes.io~csi/pv/mount/sub"),
        Path::new("/elsewhere").join("pods/u/volumes/kubernetes.io~csi/pv/mount"),
    ] {
        let stage_call = ops.stage(stage_request(&target, &device));
        let publish_call = publish(&ops, publish_request(&target, &device));
        for call in [stage_call, publish_call] {
            let error = expect_error(call, InvalidArgument);
            assert_contains(
                &error,
                &[
                    "`kubelet_dirs`",
                    "`match_roots`",
                    "config.toml",
                    utf8(&target),
                ],
            );
        }
    }
    assert_eq!(entries(&node), 0);
    // This holds whether or not the directories exist already.
    for target in [
        node.target("u", "pv-1"),
        node.handler().target_path("u", "pv-2"),
        root.join("a"),
    ] {
        ops.stage(stage_request(&target, &device)).unwrap();
        assert!(mount_info(&node, &target).is_some());
    }
    // The command line, which root uses, accepts any path.
    let elsewhere = node.dir().subdir("elsewhere");
    let _ = node.try_stage(&elsewhere, device.path(), &[]).success();
}

/// The mount may be the volume of another driver. Staging over it would hide it from its pod.
#[test]
fn nothing_is_staged_over_a_mount() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    mounts::tmpfs(&target);
    let stage_call = ops.stage(stage_request(&target, &device));
    assert_eq!(reason(&stage_call), "VOLUME_STATE");
    let publish_call = publish(&ops, publish_request(&target, &device));
    for call in [stage_call, publish_call] {
        let error = expect_error(call, FailedPrecondition);
        assert!(
            error.contains("mount point") && error.contains(utf8(&target)),
            "{error}"
        );
    }
    assert_eq!(entries(&node), 0);
    mounts::unmount(&target);
    ops.stage(stage_request(&target, &device)).unwrap();

    // A change of a staged volume is refused for the same reason.
    mounts::bind(&node.dir().subdir("elsewhere"), &target);
    let another = with_options(&target, &device, &["noatime"]);
    expect_error(ops.stage(another.clone()), FailedPrecondition);
    // A repeated stage succeeds.
    ops.stage(stage_request(&target, &device)).unwrap();
    mounts::unmount(&target);
    ops.stage(another).unwrap();
}

#[test]
fn nothing_is_staged_over_files() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = node.ext4();
    let target = node.target("pod-a", "pv-1");
    fs::create_dir_all(target.join("a/b")).unwrap();
    for file in [target.join("a/b/file"), target.join("file")] {
        fs::write(&file, "data").unwrap();
        let stage_call = ops.stage(stage_request(&target, &device));
        let publish_call = publish(&ops, publish_request(&target, &device));
        for call in [stage_call, publish_call] {
            let error = expect_error(call, FailedPrecondition);
            assert!(error.contains("isn't an empty directory"), "{error}");
        }
        fs::remove_file(&file).unwrap();
    }
    // Empty directories are accepted, because runtimes create the directories of subPaths.
    ops.stage(stage_request(&target, &device)).unwrap();
    let before = file_identities(&node.entry(&target));
    // A pod with another handler has written to the directory since. The volume stays staged for its own pod.
    fs::write(target.join("file"), "data").unwrap();
    ops.stage(stage_request(&target, &device)).unwrap();
    assert_eq!(file_identities(&node.entry(&target)), before);
    expect_error(
        ops.stage(with_options(&target, &device, &["noatime"])),
        FailedPrecondition,
    );
    assert_eq!(file_identities(&node.entry(&target)), before);
}

/// An existing entry does not disable the checks, unless the same request is repeated.
#[test]
fn an_entry_is_replaced_only_where_a_new_one_is_accepted() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let (device, other) = (node.ext4(), node.ext4());
    let elsewhere = node.dir().subdir("elsewhere");
    let _ = node.try_stage(&elsewhere, device.path(), &[]).success();
    let mounted = node.target("pod-a", "pv-1");
    ops.stage(stage_request(&mounted, &device)).unwrap();
    mounts::tmpfs(&mounted);
    let with_files = node.target("pod-a", "pv-2");
    ops.stage(stage_request(&with_files, &device)).unwrap();
    fs::write(with_files.join("file"), "data").unwrap();
    for (target, code, words) in [
        (&elsewhere, InvalidArgument, "`match_roots`"),
        (&mounted, FailedPrecondition, "mount point"),
        (&with_files, FailedPrecondition, "isn't an empty directory"),
    ] {
        let before = file_identities(&node.entry(target));
        let stage_call = ops.stage(stage_request(target, &other));
        let publish_call = publish(&ops, publish_request(target, &other));
        for call in [stage_call, publish_call] {
            let error = expect_error(call, code);
            assert!(error.contains(words), "{error}");
        }
        ops.stage(stage_request(target, &device)).unwrap();
        let repeated = publish(&ops, publish_request(target, &device));
        let error = expect_error(repeated, FailedPrecondition);
        assert!(error.contains("no record of sandbox"), "{error}");
        assert_eq!(file_identities(&node.entry(target)), before);
    }
    mounts::unmount(&mounted);
    ops.stage(stage_request(&mounted, &other)).unwrap();
}

/// A driver has to be able to unstage after the settings that accepted its volume have changed.
#[test]
fn a_volume_can_be_unstaged_after_a_change_of_settings() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = node.ext4();
    let elsewhere = node.dir().subdir("elsewhere");
    let _ = node.try_stage(&elsewhere, device.path(), &[]).success();
    expect_error(
        ops.stage(with_options(&elsewhere, &device, &["noatime"])),
        InvalidArgument,
    );
    for _ in 0..2 {
        ops.unstage(&elsewhere).unwrap();
        assert_eq!(entries(&node), 0);
    }
}

/// The log names both contents and the caller that replaced one by the other.
#[test]
fn a_replacement_is_logged_with_its_caller() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let (device, other) = (node.ext4(), node.ext4());
    let target = node.target("pod-a", "pv-1");
    ops.stage(with_options(&target, &device, &["noatime"]))
        .unwrap();
    assert!(!ops.log().contains("WARN"), "{}", ops.log());
    ops.stage(with_options(&target, &device, &["noatime"]))
        .unwrap();
    assert!(!ops.log().contains("WARN"), "{}", ops.log());
    ops.stage(stage_request(&target, &other)).unwrap();
    let log = ops.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(" WARN ")).collect();
    let [warning] = warnings[..] else {
        panic!("{log}");
    };
    let command = fs::read_to_string("/proc/self/comm").unwrap();
    for part in [
        utf8(device.path()),
        "\"noatime\"",
        utf8(other.path()),
        utf8(&target),
        &format!("uid=0 pid={}", std::process::id()),
        &format!("command={:?}", command.trim_end()),
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
}

#[test]
fn no_more_volumes_are_staged_than_max_staged() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "max_staged = 3");
    let device = node.ext4();
    let target = |number: usize| node.target("pod-a", &format!("pv-{number}"));
    for number in 0..3 {
        ops.stage(stage_request(&target(number), &device)).unwrap();
    }
    // An existing target path is examined in a thread of its own, a missing one is not.
    let missing = node.handler().target_path("pod-a", "pv-missing");
    for target in [target(3), missing.clone()] {
        let stage_call = ops.stage(stage_request(&target, &device));
        assert_eq!(reason(&stage_call), "FULL");
        let publish_call = publish(&ops, publish_request(&target, &device));
        for call in [stage_call, publish_call] {
            let error = expect_error(call, ResourceExhausted);
            assert_contains(
                &error,
                &["3 volumes", "`max_staged` allows 3", "crust_ops.toml"],
            );
        }
    }
    assert_eq!(entries(&node), 3);
    // Staged volumes can be staged again, and be replaced.
    ops.stage(stage_request(&target(0), &device)).unwrap();
    ops.stage(stage_request(&target(0), &node.ext4())).unwrap();
    ops.unstage(&target(1)).unwrap();
    ops.stage(stage_request(&missing, &device)).unwrap();
    expect_error(
        ops.stage(stage_request(&target(1), &device)),
        ResourceExhausted,
    );
    // The command line, which root uses, has no limit.
    let _ = node.try_stage(&target(4), device.path(), &[]).success();
    ops.reconfigure(&node, "max_staged = 5");
    ops.signal(Signal::SIGHUP);
    wait_until("the new limit", WAIT_TIMEOUT, || {
        ops.log().contains("reloaded")
    });
    ops.stage(stage_request(&target(1), &device)).unwrap();
}

#[test]
fn no_more_bytes_are_staged_than_max_staged_bytes() {
    let node = Node::trusted(Delegate::Runc, "");
    let ops = Ops::with(&node, "max_staged_bytes = 65536");
    let device = node.ext4();
    let padded = format!("commit={}30", "0".repeat(200));
    let options = vec![padded.as_str(); 18];
    let mut stagings = (0..64).map(|number| {
        let target = node.target("pod-a", &format!("pv-{number}"));
        ops.stage(with_options(&target, &device, &options))
    });
    let refusal = stagings.find(Result::is_err).expect("a limit");
    let error = expect_error(refusal, ResourceExhausted);
    assert!(error.contains("`max_staged_bytes` allows 65536"), "{error}");
    let sizes = fs::read_dir(node.handler().crust_root())
        .unwrap()
        .map(|entry| {
            let file = entry.unwrap().path().join("mountInfo.json");
            fs::metadata(file).unwrap().len()
        });
    let bytes: u64 = sizes.sum();
    assert!((60_000..=65_536).contains(&bytes), "{bytes}");
    // Longer content counts even if it replaces shorter content.
    let target = |name: &str| node.target("pod-a", name);
    ops.unstage(&target("pv-0")).unwrap();
    let short = |name: &str| ops.stage(stage_request(&target(name), &device));
    short("pv-0").unwrap();
    let refusal = (0..64).find_map(|number| short(&format!("short-{number}")).err());
    expect_error(Err::<(), _>(refusal.expect("a limit")), ResourceExhausted);
    let stage_call = ops.stage(with_options(&target("pv-0"), &device, &options));
    let publish_call = publish(
        &ops,
        RuntimePublishVolumeRequest {
            mount_options: options.iter().map(ToString::to_string).collect(),
            ..publish_request(&target("pv-0"), &device)
        },
    );
    for call in [stage_call, publish_call] {
        let error = expect_error(call, ResourceExhausted);
        assert!(error.contains("`max_staged_bytes` allows 65536"), "{error}");
    }
    let shorter = with_options(&target("pv-1"), &device, &options[1..]);
    ops.stage(shorter).expect("shorter content fits");
}

#[test]
fn options_are_limited_and_normalised() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let device = node.ext4();
    let long = format!("x-padding={}", "a".repeat(200));
    let too_long = vec![long.as_str(); 20];
    let too_many = vec!["noatime"; 129];
    let commas = too_many.join(",");
    let kept = ["defaults", "", &long, "noatime,_netdev", "nofail,auto"];
    let by_socket = node.target("pod-a", "pv-1");
    let by_hand = node.target("pod-a", "pv-2");
    let stage_by_hand = |options: &[&str]| {
        let flags: Vec<String> = options.iter().map(|it| format!("--option={it}")).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        node.try_stage(&by_hand, device.path(), &flags)
    };
    for (options, expected) in [
        (&too_long[..], "4220 bytes"),
        (&too_many[..], "129 mount options"),
        (&[&*commas][..], "129 mount options"),
    ] {
        let call = ops.stage(with_options(&by_socket, &device, options));
        let error = expect_error(call, InvalidArgument);
        assert!(error.contains(expected), "{error}");
        let run = stage_by_hand(options).failure();
        assert!(run.stderr.contains(expected), "{run}");
    }
    ops.stage(with_options(&by_socket, &device, &kept)).unwrap();
    let _ = stage_by_hand(&kept).success();
    for target in [&by_socket, &by_hand] {
        let info = mount_info(&node, target).unwrap();
        assert_eq!(info["options"], json!(["noatime"]), "{info}");
    }
}

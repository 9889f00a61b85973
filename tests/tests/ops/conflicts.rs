//! Repeated stages, with the same content and with other content (docs/protocol.md).

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use crust_proto::v1::RuntimeStageVolumeRequest;
use crust_proto::v1::VolumeGroupChangePolicy;
use crust_proto::v1::volume_group_change_policy::Policy;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use runcrust_tests::container::{end, kill_everything};
use runcrust_tests::node::utf8;
use runcrust_tests::ops::stage_request;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{LoopDevice, Node, Ops, POD, on_each_delegate, retry_lost_race};
use serde_json::json;
use tonic::Code::FailedPrecondition;

use crate::{expect_error, file_identities, mount_info, reason};

/// A request with every field set.
fn full_request(target: &Path, device: &LoopDevice) -> RuntimeStageVolumeRequest {
    RuntimeStageVolumeRequest {
        mount_flags: vec!["noatime".to_owned()],
        volume_supplemental_group: "7".to_owned(),
        volume_supplemental_group_change_policy: Some(VolumeGroupChangePolicy {
            policy: Policy::OnRootMismatch.into(),
        }),
        access_mode: "SINGLE_NODE_SINGLE_WRITER".to_owned(),
        ..stage_request(target, device)
    }
}

/// Returns copies of a request, each with another field changed.
fn changed_requests(
    request: &RuntimeStageVolumeRequest,
    other: &LoopDevice,
) -> Vec<RuntimeStageVolumeRequest> {
    let changes: [&dyn Fn(&mut RuntimeStageVolumeRequest); 8] = [
        &|it| it.volume_backing_path = utf8(other.path()).into(),
        &|it| it.fs_type = "ext3".into(),
        &|it| it.mount_flags.clear(),
        &|it| it.volume_supplemental_group = "8".into(),
        &|it| it.volume_supplemental_group_change_policy = None,
        &|it| it.readonly = true,
        &|it| it.access_mode = "SINGLE_NODE_MULTI_WRITER".into(),
        &|it| it.device_node = true,
    ];
    let requests = changes.iter().map(|change| {
        let mut request = request.clone();
        change(&mut request);
        request
    });
    requests.collect()
}

on_each_delegate! {
    fn other_content_is_refused_while_in_use(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.target(POD, "pv-1");
        let request = full_request(&target, &device);
        let entry = node.entry(&target);
        let changed_requests = changed_requests(&request, &other);

        // The volume is not in use, so any other content replaces the staged content.
        let mut staged_infos = Vec::new();
        for request in changed_requests.iter().chain([&request]) {
            ops.stage(request.clone()).unwrap();
            let now = mount_info(&node, &target).unwrap();
            assert!(!staged_infos.contains(&now), "{now}");
            staged_infos.push(now);
            let before = file_identities(&entry);
            ops.stage(request.clone()).expect("the repeated call");
            assert_eq!(file_identities(&entry), before, "a repeated stage changes no file");
        }
        let expected = json!({
            "version": 1,
            "volume-type": "block",
            "device": device.path(),
            "fstype": "ext4",
            "options": ["noatime"],
            "metadata": {
                "fsGroup": "7",
                "fsGroupChangePolicy": "OnRootMismatch",
                "targetPath": target,
                "accessMode": "SINGLE_NODE_SINGLE_WRITER",
                "diskSeq": device.disk_seq(),
            },
        });
        assert_eq!(staged_infos.last(), Some(&expected));

        // While the volume is in use, other content is refused.
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let before = file_identities(&entry);
        ops.stage(request.clone()).expect("the repeated call");
        for other in &changed_requests {
            let call = ops.stage(other.clone());
            assert_eq!(reason(&call), "VOLUME_STATE");
            let error = expect_error(call, FailedPrecondition);
            assert!(error.starts_with("volume pv-1: it is in use by "), "{error}");
            assert!(error.contains(sandbox.id()) && error.contains(POD), "{error}");
        }
        let error = expect_error(ops.unstage(&target), FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");
        assert_eq!(file_identities(&entry), before);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");

        // The owner is dead: the content can be replaced.
        kill_everything(&[&sandbox, &app]);
        ops.stage(request).expect("the same content");
        ops.stage(changed_requests[0].clone()).expect("other content");
        let device = mount_info(&node, &target).unwrap()["device"].clone();
        assert_eq!(device, json!(utf8(other.path())));
        ops.unstage(&target).unwrap();
        assert!(!entry.exists());
    }

    /// kubelet publishes again after each of its restarts, and an upgraded driver may spell the options differently.
    fn another_spelling_of_the_same_content_is_accepted(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let link = node.dir().join("by-id");
        symlink(device.path(), &link).unwrap();
        let target = node.target(POD, "pv-1");
        let request = RuntimeStageVolumeRequest {
            mount_flags: vec!["noatime".to_owned(), "commit=7".to_owned()],
            ..stage_request(&target, &device)
        };
        ops.stage(request.clone()).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let entry = node.entry(&target);
        let before = file_identities(&entry);
        let with = |flags: &[&str]| RuntimeStageVolumeRequest {
            mount_flags: flags.iter().map(ToString::to_string).collect(),
            ..request.clone()
        };
        let by_link = RuntimeStageVolumeRequest {
            volume_backing_path: utf8(&link).into(),
            access_mode: "SINGLE_NODE_MULTI_WRITER".into(),
            ..request.clone()
        };
        for same in [
            with(&["commit=7", "noatime"]),
            with(&["noatime,commit=7"]),
            with(&["rw", "defaults", "_netdev", "", "noatime", "commit=9", "commit=7"]),
            with(&["noatime", "commit=7", "nouuid"]),
            by_link,
            // Sent by an upgraded driver with SINGLE_NODE_MULTI_WRITER for a ReadWriteOncePod claim.
            RuntimeStageVolumeRequest {
                access_mode: "SINGLE_NODE_SINGLE_WRITER".into(),
                ..request.clone()
            },
        ] {
            ops.stage(same.clone()).unwrap_or_else(|error| panic!("{same:?}: {error}"));
            assert_eq!(file_identities(&entry), before, "{same:?}");
        }
        let elsewhere = RuntimeStageVolumeRequest {
            volume_backing_path: utf8(other.path()).into(),
            ..request.clone()
        };
        let devices = [device.number(), other.number()].map(|number| format!("({number})"));
        for (differs, names) in [
            (
                with(&["noatime", "commit=8"]),
                [r#"options: staged "commit=7", requested "commit=8""#.to_owned(), sandbox.id().to_owned()],
            ),
            (elsewhere, devices),
        ] {
            let error = expect_error(ops.stage(differs), FailedPrecondition);
            for name in names {
                assert!(error.contains(&name), "no {name:?} in: {error}");
            }
            assert_eq!(file_identities(&entry), before);
        }
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, sandbox]);
    }

    /// A driver attaches a detached image again, and repeats the publish.
    fn a_reattached_device_can_be_staged_again(delegate: Delegate) {
        retry_lost_race(|| {
            let (node, ops) = Ops::with_node(delegate);
            let device = node.ext4();
            let (file, before) = (device.file().to_owned(), device.disk_seq());
            let target = node.target(POD, "pv-1");
            let request = full_request(&target, &device);
            ops.stage(request.clone()).unwrap();
            let first = mount_info(&node, &target).unwrap();
            let device = device.reattach(&file)?;
            let now = device.disk_seq();
            assert_ne!(before, now, "a kernel that counts files of loop devices");
            ops.stage(request).expect("the repeated call");
            let mut second = mount_info(&node, &target).unwrap();
            assert_eq!(second["metadata"]["diskSeq"], now);
            second["metadata"]["diskSeq"] = before.into();
            assert_eq!(second, first, "only diskSeq changed");
            let sandbox = node.sandbox(POD);
            let app = node.app(&sandbox, &target, "/data");
            assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
            end([app, sandbox]);
            Some(())
        });
    }

    /// No hook has run, so the unstage has to clean up.
    fn after_a_death_unstage_waits_until_the_device_is_free(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let ops = Ops::with(&node, "unstage_timeout = 1");
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        ops.stage(stage_request(&target, &device)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("dd if=/dev/zero of=/data/file bs=1M count=8 2>/dev/null");
        kill_everything(&[&sandbox, &app]);
        // The device has another user without a record.
        with_mounted(device.path(), |_| {
            let error = expect_error(ops.unstage(&target), FailedPrecondition);
            assert!(error.contains(utf8(device.path())), "{error}");
            assert!(node.entry(&target).exists());
        });
        ops.unstage(&target).unwrap();
        assert!(device.is_free(), "the device is free when the unstage returns");
        assert!(!node.entry(&target).exists());
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
    }

    /// The unstage checks the device repeatedly.
    fn an_unstage_ends_when_the_device_is_free(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        ops.stage(stage_request(&target, &device)).unwrap();
        let sandbox = node.sandbox(POD);
        kill_everything(&[&sandbox]);
        let locks = node.handler().state_dir().join("locks");
        let lock_name = OsString::from(format!("{}.lock", device.number()));
        let watch = Inotify::init(InitFlags::empty()).unwrap();
        let _ = watch.add_watch(&locks, AddWatchFlags::IN_OPEN).unwrap();
        thread::scope(|scope| {
            let unstage = with_mounted(device.path(), |_| {
                let unstage = scope.spawn(|| ops.unstage(&target));
                let mut lock_opens = 0;
                while lock_opens < 3 {
                    let events = watch.read_events().unwrap();
                    lock_opens += events.iter().filter(|it| it.name.as_ref() == Some(&lock_name)).count();
                }
                assert!(!unstage.is_finished());
                unstage
            });
            unstage.join().unwrap().unwrap();
        });
        assert!(!node.entry(&target).exists() && device.is_free());
    }

    fn a_second_pod_does_not_delay_an_unstage(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = node.ext4();
        let (one, two) = (node.target("pod-a", "pv-1"), node.target("pod-b", "pv-1"));
        ops.stage(stage_request(&one, &device)).unwrap();
        ops.stage(stage_request(&two, &device)).unwrap();
        let (a, b) = (node.sandbox("pod-a"), node.sandbox("pod-b"));
        end([a]);
        ops.unstage(&one).expect("another pod uses the device");
        assert!(!device.is_free());
        end([b]);
        ops.unstage(&two).unwrap();
        assert!(device.is_free());
    }
}

//! Staging again, and staging something else (docs/protocol.md).

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

use crate::{identities, reason, refused, staged};

/// A request with every field set.
fn full(target: &Path, device: &LoopDevice) -> RuntimeStageVolumeRequest {
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

/// The same with one field each changed.
fn others(
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
    fn content_is_the_same_or_replaced_or_in_use(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.target(POD, "pv-1");
        let request = full(&target, &device);
        let entry = node.entry(&target);
        let others = others(&request, &other);

        // Unused: another takes its place, whatever differs.
        let mut seen = Vec::new();
        for request in others.iter().chain([&request]) {
            ops.stage(request.clone()).unwrap();
            let now = staged(&node, &target).unwrap();
            assert!(!seen.contains(&now), "{now}");
            seen.push(now);
            let before = identities(&entry);
            ops.stage(request.clone()).expect("the same again");
            assert_eq!(identities(&entry), before, "the same again touches nothing");
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
        assert_eq!(seen.last(), Some(&expected));

        // In use.
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let before = identities(&entry);
        ops.stage(request.clone()).expect("the same again");
        for other in &others {
            let call = ops.stage(other.clone());
            assert_eq!(reason(&call), "VOLUME_STATE");
            let error = refused(call, FailedPrecondition);
            assert!(error.starts_with("volume pv-1: it is in use by "), "{error}");
            assert!(error.contains(sandbox.id()) && error.contains(POD), "{error}");
        }
        let error = refused(ops.unstage(&target), FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");
        assert_eq!(identities(&entry), before);
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");

        // Its owner is dead.
        kill_everything(&[&sandbox, &app]);
        ops.stage(request).expect("the same");
        ops.stage(others[0].clone()).expect("another");
        let device = staged(&node, &target).unwrap()["device"].clone();
        assert_eq!(device, json!(utf8(other.path())));
        ops.unstage(&target).unwrap();
        assert!(!entry.exists());
    }

    /// kubelet publishes again after each of its restarts, and an upgraded driver may spell it differently.
    fn another_spelling_of_the_same_is_the_same(delegate: Delegate) {
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
        let before = identities(&entry);
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
            // By a driver that has SINGLE_NODE_MULTI_WRITER by now, of a ReadWriteOncePod claim.
            RuntimeStageVolumeRequest {
                access_mode: "SINGLE_NODE_SINGLE_WRITER".into(),
                ..request.clone()
            },
        ] {
            ops.stage(same.clone()).unwrap_or_else(|error| panic!("{same:?}: {error}"));
            assert_eq!(identities(&entry), before, "{same:?}");
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
            let error = refused(ops.stage(differs), FailedPrecondition);
            for name in names {
                assert!(error.contains(&name), "{name:?} isn't in: {error}");
            }
            assert_eq!(identities(&entry), before);
        }
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        end([app, sandbox]);
    }

    /// As a driver does that attaches what somebody detached, and publishes again.
    fn a_device_that_was_attached_anew_is_staged_again(delegate: Delegate) {
        retry_lost_race(|| {
            let (node, ops) = Ops::with_node(delegate);
            let device = node.ext4();
            let (file, before) = (device.file().to_owned(), device.disk_seq());
            let target = node.target(POD, "pv-1");
            let request = full(&target, &device);
            ops.stage(request.clone()).unwrap();
            let first = staged(&node, &target).unwrap();
            let device = device.reattach(&file)?;
            let now = device.disk_seq();
            assert_ne!(before, now, "a kernel that counts files of loop devices");
            ops.stage(request).expect("the same again");
            let mut second = staged(&node, &target).unwrap();
            assert_eq!(second["metadata"]["diskSeq"], now);
            second["metadata"]["diskSeq"] = before.into();
            assert_eq!(second, first, "nothing else is another");
            let sandbox = node.sandbox(POD);
            let app = node.app(&sandbox, &target, "/data");
            assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
            end([app, sandbox]);
            Some(())
        });
    }

    /// Nobody ran a hook, so nobody but the unstage can.
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
        // Somebody else has it, whom nobody has a record of.
        with_mounted(device.path(), |_| {
            let error = refused(ops.unstage(&target), FailedPrecondition);
            assert!(error.contains(utf8(device.path())), "{error}");
            assert!(node.entry(&target).exists());
        });
        ops.unstage(&target).unwrap();
        assert!(device.is_free(), "free as soon as unstage says so");
        assert!(!node.entry(&target).exists());
        assert_eq!(std::fs::read_dir(&target).unwrap().count(), 0);
    }

    /// It looks more than once.
    fn an_unstage_ends_when_the_device_is_free(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        ops.stage(stage_request(&target, &device)).unwrap();
        let sandbox = node.sandbox(POD);
        kill_everything(&[&sandbox]);
        let locks = node.handler().state_dir().join("locks");
        let look = OsString::from(format!("{}.lock", device.number()));
        let looks = Inotify::init(InitFlags::empty()).unwrap();
        let _ = looks.add_watch(&locks, AddWatchFlags::IN_OPEN).unwrap();
        thread::scope(|scope| {
            let unstage = with_mounted(device.path(), |_| {
                let unstage = scope.spawn(|| ops.unstage(&target));
                let mut seen = 0;
                while seen < 3 {
                    let events = looks.read_events().unwrap();
                    seen += events.iter().filter(|it| it.name.as_ref() == Some(&look)).count();
                }
                assert!(!unstage.is_finished());
                unstage
            });
            unstage.join().unwrap().unwrap();
        });
        assert!(!node.entry(&target).exists() && device.is_free());
    }

    fn a_second_pod_on_the_device_does_not_hold_up_the_first(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = node.ext4();
        let (one, two) = (node.target("pod-a", "pv-1"), node.target("pod-b", "pv-1"));
        ops.stage(stage_request(&one, &device)).unwrap();
        ops.stage(stage_request(&two, &device)).unwrap();
        let (a, b) = (node.sandbox("pod-a"), node.sandbox("pod-b"));
        end([a]);
        ops.unstage(&one).expect("the other pod has the device");
        assert!(!device.is_free());
        end([b]);
        ops.unstage(&two).unwrap();
        assert!(device.is_free());
    }
}

//! The CRUST interface: the capabilities of the runtime, and volumes for running sandboxes.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crust_proto::runtime::v1alpha1::runtime_assisted_storage_management_client::RuntimeAssistedStorageManagementClient;
use crust_proto::runtime::v1alpha1::runtime_capability::{Type as Kind, rpc::Type};
use crust_proto::runtime::v1alpha1::volume_usage::Unit;
use crust_proto::runtime::v1alpha1::{
    RuntimeExpandVolumeRequest, RuntimeGetCapabilitiesRequest,
    RuntimeGetSupportedFileSystemsRequest, RuntimeGetVolumeStatsRequest,
    RuntimeGetVolumeStatsResponse, RuntimePublishVolumeRequest,
};
use nix::fcntl::{Flock, FlockArg};
use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::refusal::assert_contains;
use runcrust_tests::{
    Container, Delegate, LoopDevice, Node, Ops, POD, on_each_delegate, process, wait_until,
    wait_until_async,
};
use tonic::Code::{FailedPrecondition, InvalidArgument, NotFound, OutOfRange};
use tonic::Status;

use crate::{expect_error, file_identities, mount_info, reason};

fn capabilities(ops: &Ops) -> Vec<Type> {
    let request = RuntimeGetCapabilitiesRequest {};
    let answer = ops
        .crust(|mut client| async move { client.runtime_get_capabilities(request).await })
        .unwrap();
    let types = answer.capabilities.iter().map(|it| match &it.r#type {
        Some(Kind::Rpc(rpc)) => rpc.r#type(),
        None => panic!("{answer:?}"),
    });
    types.collect()
}

fn file_systems(ops: &Ops) -> Vec<String> {
    let request = RuntimeGetSupportedFileSystemsRequest {};
    let answer =
        ops.crust(
            |mut client| async move { client.runtime_get_supported_file_systems(request).await },
        );
    answer.unwrap().file_systems
}

pub(crate) fn publish_request(
    sandbox: &Container,
    target: &Path,
    device: &LoopDevice,
) -> RuntimePublishVolumeRequest {
    RuntimePublishVolumeRequest {
        sandbox_id: sandbox.id().to_owned(),
        host_volume_id: utf8(device.path()).to_owned(),
        host_target_path: utf8(target).to_owned(),
        file_system: device.fstype().to_owned(),
        ..RuntimePublishVolumeRequest::default()
    }
}

pub(crate) fn publish(ops: &Ops, request: RuntimePublishVolumeRequest) -> Result<(), Status> {
    ops.crust(|mut client| async move { client.runtime_publish_volume(request).await })?;
    Ok(())
}

pub(crate) fn stats(
    ops: &Ops,
    sandbox: &str,
    device: &Path,
) -> Result<RuntimeGetVolumeStatsResponse, Status> {
    let request = RuntimeGetVolumeStatsRequest {
        sandbox_id: sandbox.to_owned(),
        host_volume_id: utf8(device).to_owned(),
    };
    ops.crust(|mut client| async move { client.runtime_get_volume_stats(request).await })
}

fn expand(ops: &Ops, sandbox: &str, device: &Path, required_bytes: i64) -> Result<i64, Status> {
    let request = RuntimeExpandVolumeRequest {
        sandbox_id: sandbox.to_owned(),
        host_volume_id: utf8(device).to_owned(),
        required_bytes,
    };
    let call = ops.crust(|mut client| async move { client.runtime_expand_volume(request).await });
    Ok(call?.capacity_bytes)
}

#[test]
fn capabilities_are_those_of_the_host_without_disabled_ones() {
    let (node, ops) = Ops::with_node(Delegate::Runc);
    let all = [
        Type::FsGroupChangePolicyAlways,
        Type::FsGroupChangePolicyRootMismatch,
        Type::Subpath,
        Type::VolumeStats,
        Type::VolumeResize,
    ];
    assert_eq!(capabilities(&ops), all);
    assert_eq!(file_systems(&ops), ["ext4", "ext3", "xfs", "btrfs"]);
    // File systems that the kernel does not support are not listed.
    node.handler()
        .reconfigure("fstypes = [\"xfs\", \"no-such-fs\"]");
    assert_eq!(file_systems(&ops), ["xfs"]);
    assert_eq!(capabilities(&ops), all);
    node.handler().reconfigure("fstypes = [\"no-such-fs\"]");
    assert_eq!(file_systems(&ops), <[String; 0]>::default());
    assert_eq!(capabilities(&ops), []);
    node.handler()
        .reconfigure("capabilities_off = [\"SUBPATH\", \"VOLUME_RESIZE\"]");
    assert_eq!(capabilities(&ops), [all[0], all[1], all[3]]);
}

on_each_delegate! {
    fn a_volume_is_published_to_a_running_sandbox(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::start(&node);
        let device = LoopDevice::formatted(node.dir(), "xfs", 320);
        let sandbox = node.sandbox(POD);
        let target = node.target(POD, "pv-1");
        let mut request = publish_request(&sandbox, &target, &device);
        request.fsgroup_gid = Some(4242);
        request.fsgroup_policy = "OnRootMismatch".into();
        request.mount_options = vec!["noatime".to_owned()];
        publish(&ops, request.clone()).unwrap();
        assert_eq!(device.mounts_of(sandbox.pid()).len(), 1, "mounted by the publish");
        assert_eq!(device.host_mounts(), <[String; 0]>::default());
        let info = mount_info(&node, &target).unwrap();
        assert_eq!(info["metadata"]["fsGroupChangePolicy"], "OnRootMismatch");
        publish(&ops, request.clone()).expect("the repeated call");

        let app = node.app(&sandbox, &target.join("sub"), "/data");
        assert_eq!(app.sh("echo hello > /data/file; stat -c %g /data"), "4242");
        assert_eq!(device.mounts_of(sandbox.pid()).len(), 1, "still the mount of the publish");
        publish(&ops, request.clone()).expect("the repeated call");
        let other = RuntimePublishVolumeRequest { fsgroup_gid: Some(0), ..request };
        let error = expect_error(publish(&ops, other), FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");

        // The device can be named by any path.
        let by_id = node.dir().join("by-id");
        symlink(device.path(), &by_id).unwrap();
        for name in [device.path(), &by_id] {
            let stats = stats(&ops, sandbox.id(), name).unwrap();
            let usage = stats.usage.iter().find(|usage| usage.unit() == Unit::Bytes).unwrap();
            let df = app.sh("df -P -k /data | tail -n 1");
            let df: Vec<i64> = df.split_whitespace().filter_map(|field| field.parse().ok()).collect();
            assert_eq!(df, [usage.total / 1024, usage.used / 1024, usage.available / 1024]);
        }
        let after = 512 << 20;
        device.set_size(after);
        let after = after.cast_signed();
        assert_eq!(expand(&ops, sandbox.id(), &by_id, 0).unwrap(), after);
        assert_eq!(expand(&ops, sandbox.id(), device.path(), after).unwrap(), after);
        expect_error(expand(&ops, sandbox.id(), device.path(), after + 1), OutOfRange);

        expect_error(ops.unstage(&target), FailedPrecondition);
        end([app, sandbox]);
        ops.unstage(&target).unwrap();
        device.wait_until_free(WAIT_TIMEOUT);
        assert_eq!(mount_info(&node, &target), None);
    }

    fn a_sandbox_that_cannot_take_volumes_needs_a_setting(delegate: Delegate) {
        let (node, ops) = Ops::with_node(delegate);
        let device = node.ext4();
        let sandbox = node.sandbox(POD);
        let target = node.target(POD, "pv-1");
        let before = node.records();
        let request = publish_request(&sandbox, &target, &device);
        let error = expect_error(publish(&ops, request), FailedPrecondition);
        assert_contains(&error, &["volume pv-1: ", sandbox.id(), "sandbox = \"always\""]);
        assert_eq!(node.records(), before);
        assert!(device.is_free());
    }

    fn a_failed_publish_does_not_change_the_sandbox(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::start(&node);
        let device = node.ext4();
        let sandbox = node.sandbox(POD);
        let target = node.target(POD, "pv-1");
        let before = node.records();
        let mut request = publish_request(&sandbox, &target, &device);
        request.mount_options = vec!["no-such-option=5".to_owned()];
        let call = publish(&ops, request.clone());
        assert!(call.clone().unwrap_err().message().contains("no-such-option"), "{call:?}");
        assert_eq!(node.records(), before);
        assert!(device.is_free());
        request.mount_options.clear();
        end([sandbox]);
        let error = expect_error(publish(&ops, request), FailedPrecondition);
        assert!(error.contains("has ended"), "{error}");
        assert!(!node.entry(&target).exists());
    }

    fn a_failed_publish_keeps_the_staged_volume(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::start(&node);
        let (device, other) = (LoopDevice::formatted(node.dir(), "xfs", 320), node.ext4());
        let sandbox = node.sandbox(POD);
        let target = node.target(POD, "pv-1");
        let after = 512 << 20;
        let mut request = stage_request(&target, &device);
        request.volume_supplemental_group = "4242".into();
        ops.stage(request.clone()).unwrap();
        device.set_size(after);
        assert_eq!(ops.expand(&target, after.cast_signed(), 0).unwrap(), after.cast_signed());
        let wrong = |it: &mut RuntimePublishVolumeRequest| {
            it.mount_options = vec!["no-such-option=5".into()];
        };
        let changes: [Change; 3] = [
            wrong,
            |it| it.file_system = "btrfs".into(),
            |it| (it.mount_options, it.fsgroup_gid) = (vec!["ro,no-such-option".into()], Some(1)),
        ];
        let requests = changes.map(|change| {
            let mut request = publish_request(&sandbox, &target, &device);
            change(&mut request);
            request
        });
        let mut request_for_other = publish_request(&sandbox, &target, &other);
        wrong(&mut request_for_other);
        for read_only in [false, true] {
            request.readonly = read_only;
            ops.stage(request.clone()).unwrap();
            let before = content(&node.entry(&target));
            assert_eq!(before.len(), 3, "mountInfo.json, targets and resize.json: {before:?}");
            for request in requests.iter().chain([&request_for_other]) {
                expect_error(publish(&ops, request.clone()), InvalidArgument);
                assert_eq!(content(&node.entry(&target)), before);
                assert!(device.is_free() && other.is_free());
            }
        }
        // The staged volume still works for the pod, and is not changed while it is in use.
        request.readonly = false;
        ops.stage(request).unwrap();
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("stat -c %g /data"), "4242");
        let size = app.sh("df -P -k /data | tail -n 1 | awk '{print $2}'");
        assert!(size.parse::<u64>().unwrap() > 400 << 10, "the volume has grown: {size}");
        let before = file_identities(&node.entry(&target));
        for request in requests.iter().chain([&request_for_other]) {
            let error = expect_error(publish(&ops, request.clone()), FailedPrecondition);
            assert!(error.contains(sandbox.id()), "{error}");
            assert_eq!(file_identities(&node.entry(&target)), before);
        }
        end([app, sandbox]);
    }
}

/// Returns the files of an entry with their contents.
fn content(entry: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(entry).expect("an entry");
    let paths = files.map(|file| file.expect("a file").path());
    let mut files: Vec<_> = paths
        .map(|path| (path.clone(), fs::read(path).expect("a file")))
        .collect();
    files.sort();
    files
}

/// If the publish ended between its steps, a volume would be staged and not mounted.
#[test]
fn an_abandoned_publish_is_completed() {
    let node = Node::trusted(Delegate::Runc, "sandbox = \"always\"");
    let ops = Ops::start(&node);
    let device = node.ext4();
    let sandbox = node.sandbox(POD);
    let target = node.target(POD, "pv-1");
    publish(&ops, publish_request(&sandbox, &target, &device)).unwrap();
    end([sandbox]);
    ops.unstage(&target).unwrap();
    let sandbox = node.sandbox(POD);
    // The unstage removed the lock with the volume.
    let lock = File::create_new(node.lock_file(&target)).unwrap();
    let held = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let request = publish_request(&sandbox, &target, &device);
    ops.block_on(async {
        let mut client =
            RuntimeAssistedStorageManagementClient::new(ops.channel(ops.crust_socket()));
        let call = tokio::spawn(async move { client.runtime_publish_volume(request).await });
        wait_until_async("the runtime to run", WAIT_TIMEOUT, || {
            !process::children(ops.pid()).is_empty()
        })
        .await;
        call.abort();
        wait_until_async("the daemon to notice the disconnect", WAIT_TIMEOUT, || {
            ops.log().contains("the caller cancelled the call")
        })
        .await;
    });
    drop(held);
    wait_until("the volume to be mounted", WAIT_TIMEOUT, || {
        stats(&ops, sandbox.id(), device.path()).is_ok()
    });
}

type Change = fn(&mut RuntimePublishVolumeRequest);

/// Invalid changes of a request, each with the reason in the details and the start of the message.
const INVALID: [(Change, &str, &str); 17] = [
    (
        |it| it.sandbox_id.clear(),
        "INVALID_FIELD",
        "volume pv-1: sandbox_id: it is required",
    ),
    (
        |it| it.host_volume_id.clear(),
        "INVALID_FIELD",
        "volume pv-1: host_volume_id: it is required",
    ),
    (
        |it| it.host_target_path.clear(),
        "INVALID_FIELD",
        "host_target_path: it is required",
    ),
    (
        |it| it.host_target_path = "a".into(),
        "INVALID_FIELD",
        "host_target_path: target path \"a\" is relative",
    ),
    (
        |it| it.host_target_path += "/..",
        "INVALID_FIELD",
        "host_target_path: target path ",
    ),
    (
        |it| it.file_system.clear(),
        "INVALID_FIELD",
        "volume pv-1: file_system: it is required",
    ),
    (
        |it| it.fsgroup_gid = Some(-1),
        "INVALID_FIELD",
        "volume pv-1: fsgroup_gid: -1 is negative",
    ),
    (
        |it| it.fsgroup_policy = "Sometimes".into(),
        "INVALID_FIELD",
        "volume pv-1: fsgroup_policy: \"Sometimes\" isn't an fsGroupChangePolicy",
    ),
    (
        |it| (it.fsgroup_gid, it.fsgroup_policy) = (Some(0), "Sometimes".into()),
        "INVALID_FIELD",
        "volume pv-1: fsgroup_policy: \"Sometimes\" isn't an fsGroupChangePolicy",
    ),
    (
        |it| it.host_volume_id = "/dev/no-such-device".into(),
        "RUNTIME",
        "volume pv-1: device \"/dev/no-such-device\"",
    ),
    (
        |it| it.host_volume_id = "--help".into(),
        "RUNTIME",
        "volume pv-1: ",
    ),
    (
        |it| it.file_system = "vfat".into(),
        "RUNTIME",
        "volume pv-1: file system \"vfat\"",
    ),
    (
        |it| it.mount_options = vec!["password=x".into()],
        "INVALID_FIELD",
        "volume pv-1: mount_options: mount option password: looks like",
    ),
    // Mistakes that only the mount finds.
    (
        |it| it.mount_options = vec!["no-such-option=5".into()],
        "RUNTIME",
        "volume pv-1: fsconfig(",
    ),
    (
        |it| it.file_system = "xfs".into(),
        "RUNTIME",
        "volume pv-1: fsconfig(",
    ),
    // The value is longer than an argument of a program or an entry can be.
    (
        |it| it.mount_options = vec!["commit=5".into(); 9_000],
        "INVALID_FIELD",
        "volume pv-1: mount_options: with this field the volume's description is longer than 65536 bytes",
    ),
    (
        |it| it.sandbox_id = "s".repeat(200_000),
        "INVALID_FIELD",
        "volume pv-1: sandbox_id: with this field the volume's description is longer",
    ),
];

#[test]
fn invalid_requests_are_refused_and_change_nothing() {
    let node = Node::trusted(Delegate::Runc, "sandbox = \"always\"");
    let ops = Ops::start(&node);
    let device = node.ext4();
    let sandbox = node.sandbox(POD);
    let target = node.target(POD, "pv-1");
    let before = node.records();
    let valid = publish_request(&sandbox, &target, &device);
    for (change, expected, start) in INVALID {
        let mut request = valid.clone();
        change(&mut request);
        let call = publish(&ops, request);
        assert_eq!(reason(&call), expected, "{call:?}");
        let error = expect_error(call, InvalidArgument);
        assert!(error.starts_with(start), "{error}");
        assert_eq!(node.records(), before);
    }
    // The ids are passed to the runtime as arguments, and must not be taken for flags or paths.
    let traversal = format!("../sandboxes/{}", sandbox.id());
    for (odd, code, words) in [
        (
            "no-such-sandbox",
            FailedPrecondition,
            "there is no record of sandbox no-such-sandbox",
        ),
        (
            "--help",
            FailedPrecondition,
            "there is no record of sandbox --help",
        ),
        (&traversal, InvalidArgument, "can't be a container's id"),
        (
            "a\0b",
            InvalidArgument,
            "volume pv-1: sandbox_id: it has a NUL byte",
        ),
    ] {
        let mut request = valid.clone();
        odd.clone_into(&mut request.sandbox_id);
        let error = expect_error(publish(&ops, request), code);
        assert!(error.contains(words), "{error}");
        assert_eq!(node.records(), before);
    }
    let others = node.target("another-pod", "pv-1");
    let request = publish_request(&sandbox, &others, &device);
    let error = expect_error(publish(&ops, request), InvalidArgument);
    let start = "volume pv-1: its target path belongs to pod another-pod";
    assert!(error.starts_with(start) && error.contains(POD), "{error}");
    assert_eq!(node.records(), before);
    publish(&ops, valid).unwrap();
}

#[test]
fn volumes_of_other_sandboxes_are_not_found() {
    let node = Node::trusted(Delegate::Runc, "sandbox = \"always\"");
    let ops = Ops::start(&node);
    let (device, other) = (node.ext4(), node.ext4());
    let (sandbox, other_sandbox) = (node.sandbox(POD), node.sandbox("pod-b"));
    let target = node.target(POD, "pv-1");
    publish(&ops, publish_request(&sandbox, &target, &device)).unwrap();
    stats(&ops, sandbox.id(), device.path()).unwrap();
    for (sandbox, device) in [
        (other_sandbox.id(), device.path()),
        (sandbox.id(), other.path()),
        ("no-such-sandbox", device.path()),
    ] {
        let call = stats(&ops, sandbox, device);
        assert_eq!(reason(&call), "NOT_IN_SANDBOX");
        let error = expect_error(call, NotFound);
        assert!(
            error.starts_with(&format!("sandbox {sandbox}: it has no volume")),
            "{error}"
        );
        expect_error(expand(&ops, sandbox, device, 0), NotFound);
    }
    for (sandbox, device, start) in [
        ("", device.path(), "sandbox_id: it is required"),
        (
            sandbox.id(),
            Path::new(""),
            "host_volume_id: it is required",
        ),
        (
            sandbox.id(),
            Path::new("/dev/null"),
            "host_volume_id: device \"/dev/null\": ENOTBLK",
        ),
        (
            sandbox.id(),
            Path::new("/dev/no-such"),
            "host_volume_id: device \"/dev/no-such\": ENOENT",
        ),
    ] {
        let error = expect_error(stats(&ops, sandbox, device), InvalidArgument);
        assert!(error.starts_with(start), "{error}");
    }
    let error = expect_error(
        expand(&ops, sandbox.id(), device.path(), -1),
        InvalidArgument,
    );
    assert!(error.starts_with("required_bytes: -1"), "{error}");
}

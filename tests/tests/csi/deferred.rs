//! Volumes that kubelet asks to be deferred (KEP-2857): `defer_fs_ops`.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{fs, thread};

use crust_proto::csi::v1::volume_usage::Unit;
use crust_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodeUnpublishVolumeRequest,
};
use runcrust_tests::container::end;
use runcrust_tests::csi::{Csi, CsiVolume, block, filesystem, mount_of};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::writer::{WRITER, assert_no_line_missing, wait_for_lines};
use runcrust_tests::{
    Bundle, Container, Delegate, Node, Ops, POD, Runtime, host, on_each_delegate, wait_until,
};
use tonic::{Code, Status};

use crate::scene::deferring_driver;
use crate::{deferred_publish_request, expect_error};

const OTHER_POD: &str = "cccccccc-1111-2222-3333-000000000001";

fn stats(volume: &CsiVolume, target: &Path) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        defer_fs_ops: true,
        ..volume.stats(target)
    }
}

fn unpublish(volume: &CsiVolume, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest {
        defer_fs_ops: true,
        ..volume.unpublish(target)
    }
}

/// Replaces a `crust_ops` that ends during a call: accepts a connection, and closes it once the target path has
/// arrived. With the real daemon a test could not tell when the path has arrived.
fn end_during_call(socket: &UnixListener, target: &Path) {
    socket.set_nonblocking(true).unwrap();
    let mut accepted = None;
    wait_until("the driver to call", WAIT_TIMEOUT, || {
        accepted = socket.accept().ok();
        accepted.is_some()
    });
    let (mut connection, _) = accepted.unwrap();
    connection.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let target = target.as_os_str().as_bytes();
    let mut received = Vec::<u8>::new();
    while !received.windows(target.len()).any(|it| it == target) {
        let mut part = [0; 1024];
        let read = connection.read(&mut part).unwrap();
        assert_ne!(read, 0, "the driver closed the connection");
        received.extend(&part[..read]);
    }
}

fn assert_grows_under_a_writer(delegate: Delegate, fstype: &str) {
    const MORE: i64 = 256 << 20;
    let (node, _ops, csi) = deferring_driver(delegate, &[]);
    let volume = csi.volume("pv-1", filesystem(fstype));
    let target = csi.target(POD, "pv-1");
    csi.call(volume.stage()).unwrap();
    csi.call(deferred_publish_request(&volume, &target))
        .unwrap();
    let sandbox = node.sandbox(POD);
    let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
    let app = node.run(&bundle.script(WRITER).write());
    let one = wait_for_lines(&app, 3);
    let size = |app: &Container| -> i64 {
        let text = app.sh("stat -f -c '%S %b' /data");
        text.split(' ')
            .map(|word| word.parse::<i64>().unwrap())
            .product()
    };
    let before = size(&app);

    let after = volume.capacity + MORE;
    let expand = NodeExpandVolumeRequest {
        defer_fs_ops: true,
        ..volume.expand(&target, after)
    };
    let error = expect_error(csi.call(expand.clone()), Code::OutOfRange);
    assert!(
        error.contains("call ControllerExpandVolume first"),
        "{error}"
    );
    let grown = csi.call(volume.grow(after)).unwrap();
    assert_eq!(
        (grown.capacity_bytes, grown.node_expansion_required),
        (after, true)
    );
    assert_eq!(size(&app), before, "the file system has not grown yet");
    assert_eq!(csi.call(expand.clone()).unwrap().capacity_bytes, after);
    assert_eq!(
        csi.call(expand).unwrap().capacity_bytes,
        after,
        "the repeated call"
    );
    assert!(
        size(&app) >= before + MORE / 10 * 9,
        "{} after {before}",
        size(&app)
    );
    wait_for_lines(&app, one);
    assert_no_line_missing(&app);
    end([app, sandbox]);
    csi.call(unpublish(&volume, &target)).unwrap();
}

on_each_delegate! {
    fn a_volume_is_deferred_and_mounted_in_turns(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let mut volume = csi.volume("pv-1", filesystem("ext4"));
        mount_of(&mut volume.capability).volume_supplemental_group = "4242".into();
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();

        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "the target is empty");
        assert_eq!(fs::read_dir(&volume.staging).unwrap().count(), 0, "the staging directory is empty");
        let device = csi.device(&volume.id);
        assert_eq!(host::mounts_of_device(&device), Vec::<String>::new());
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("echo deferred > /data/one; stat -c '%g %a' /data"), "4242 2775");
        csi.call(deferred_publish_request(&volume, &target)).expect("kubelet publishes again after its own restart");

        let answer = csi.call(stats(&volume, &target)).unwrap();
        let condition = answer.volume_condition.clone().unwrap();
        assert!(!condition.abnormal, "{condition:?}");
        let bytes = answer.usage.iter().find(|usage| usage.unit() == Unit::Bytes).unwrap();
        let df = app.sh("df -P -k /data | tail -n 1");
        let df: Vec<i64> = df.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        assert_eq!(df, [bytes.total / 1024, bytes.used / 1024, bytes.available / 1024], "{answer:?}");

        let error = expect_error(csi.call(unpublish(&volume, &target)), Code::FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");
        end([app, sandbox]);
        csi.call(unpublish(&volume, &target)).unwrap();
        assert!(!target.exists());
        crate::assert_nothing_left(&node);

        let plain = csi.target(OTHER_POD, "pv-1");
        csi.call(volume.publish(&plain)).unwrap();
        assert_eq!(fs::read_to_string(plain.join("one")).unwrap(), "deferred\n");
        fs::write(plain.join("two"), "plain\n").unwrap();
        csi.call(volume.unpublish(&plain)).unwrap();

        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("cat /data/one /data/two"), "deferred\nplain");
        end([app, sandbox]);
        csi.call(unpublish(&volume, &target)).unwrap();
        csi.call(volume.unstage()).unwrap();
        assert_eq!(csi.devices(&volume.id), Vec::<PathBuf>::new());
        csi.call(volume.delete()).unwrap();
        assert_eq!(csi.leftovers(), Vec::<PathBuf>::new());
    }

    fn an_xfs_grows_while_a_pod_writes(delegate: Delegate) {
        assert_grows_under_a_writer(delegate, "xfs");
    }

    #[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
    fn an_ext4_grows_while_a_pod_writes(delegate: Delegate) {
        assert_grows_under_a_writer(delegate, "ext4");
    }

    fn files_of_another_handlers_pod_are_reported_and_kept(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        fs::create_dir(target.join("logs")).unwrap();
        fs::write(target.join("logs/astray"), "somebody's data").unwrap();
        let condition = csi.call(stats(&volume, &target)).unwrap().volume_condition.unwrap();
        assert!(condition.abnormal, "{condition:?}");
        end([app, sandbox]);
        csi.call(unpublish(&volume, &target)).unwrap();
        assert!(!target.exists());
        let quarantine = node.handler().kubelet_dir().join("plugins").join(runcrust_tests::csi::DRIVER).join("quarantine");
        let kept: Vec<_> = fs::read_dir(&quarantine).unwrap().map(|it| it.unwrap().path()).collect();
        let [kept] = &kept[..] else { panic!("{kept:?}") };
        assert_eq!(fs::read_to_string(kept.join("logs/astray")).unwrap(), "somebody's data");
        let log = csi.log();
        let warning = log.lines().find(|line| line.contains(" WARN ") && line.contains("files were written there"));
        assert!(warning.is_some_and(|line| line.contains(kept.to_str().unwrap())), "{log}");
    }

    fn a_pod_with_only_another_handler_is_reported(delegate: Delegate) {
        let (node, _ops, csi) = deferring_driver(delegate, &[]);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        expect_error(csi.call(stats(&volume, &target)), Code::FailedPrecondition);
        let bare = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let app = Container::running(&Runtime::bare(delegate), &bare);
        app.sh("echo astray > /data/file");
        let answer = csi.call(stats(&volume, &target)).unwrap();
        let condition = answer.volume_condition.unwrap();
        assert!(condition.abnormal && condition.message.contains("handler without runcrust"), "{condition:?}");
        app.end();
        csi.call(unpublish(&volume, &target)).unwrap();
    }

    fn without_crust_ops_a_call_can_be_retried(delegate: Delegate) {
        let node = Node::trusted(delegate, "");
        let ops = Ops::stopped(&node, "");
        let csi = Csi::start(&node);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        let error = expect_error(csi.call(deferred_publish_request(&volume, &target)), Code::Unavailable);
        assert!(error.contains(&volume.id) && error.contains("is running and listens on "), "{error}");
        assert_eq!(host::mounts_of_device(&csi.device(&volume.id)), Vec::<String>::new(), "the driver does not mount it instead");
        ops.spawn(ops.command());
        csi.call(deferred_publish_request(&volume, &target)).unwrap();
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("touch /data/file && ls /data"), "file\nlost+found");
        end([app, sandbox]);
        csi.call(unpublish(&volume, &target)).unwrap();
    }

    fn a_call_that_crust_ops_dies_in_can_be_retried(delegate: Delegate) {
        let (_node, ops, csi) = deferring_driver(delegate, &[]);
        let volume = csi.volume("pv-1", filesystem("ext4"));
        let target = csi.target(POD, "pv-1");
        csi.call(volume.stage()).unwrap();
        let assert_retried = |call: &(dyn Fn() -> Result<(), Status> + Sync)| {
            ops.kill();
            fs::remove_file(ops.socket()).unwrap();
            let socket = UnixListener::bind(ops.socket()).unwrap();
            let ended = thread::scope(|scope| {
                let calling = scope.spawn(call);
                end_during_call(&socket, &target);
                calling.join().unwrap()
            });
            let error = expect_error(ended, Code::Unavailable);
            assert!(error.contains(&volume.id), "{error}");
            ops.spawn(ops.command());
        };
        let (publish, unpublish) = (deferred_publish_request(&volume, &target), unpublish(&volume, &target));
        assert_retried(&|| csi.call(publish.clone()).map(drop));
        // kubelet unpublishes a volume in an uncertain state. Nothing is staged yet, but the stage may still be in
        // progress.
        assert_retried(&|| csi.call(unpublish.clone()).map(drop));
        csi.call(publish.clone()).unwrap();
        assert_retried(&|| csi.call(stats(&volume, &target)).map(drop));
        csi.call(unpublish).unwrap();
    }
}

#[test]
fn a_deferred_block_volume_is_refused() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let volume = csi.volume("pv-1", block());
    let target = csi.target(POD, "pv-1");
    csi.call(volume.stage()).unwrap();
    let error = expect_error(
        csi.call(deferred_publish_request(&volume, &target)),
        Code::InvalidArgument,
    );
    assert!(error.contains("defer_fs_ops"), "{error}");
    assert!(!target.exists());
}

//! `crust_ops` as a sidecar: in a container with the host's pid namespace and the paths that it needs.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::ops::stage_request;
use runcrust_tests::{
    Bundle, Container, LoopDevice, Node, Ops, POD, Runtime, binary, on_each_delegate, wait_until,
};
use serde_json::json;
use tonic::Code::{FailedPrecondition, NotFound};

use crate::{expect_error, storage};

/// The bundle of the sidecar.
fn sidecar(node: &Node, ops: &Ops) -> Bundle {
    let mut bundle = Bundle::plain(node.dir()).all_capabilities();
    let namespaces = bundle.spec_mut()["linux"]["namespaces"]
        .as_array_mut()
        .unwrap();
    namespaces.retain(|namespace| namespace["type"] != "pid");
    bundle.spec_mut()["linux"]["resources"]["devices"] = json!([{"allow": true, "access": "rwm"}]);
    let program = binary("crust_ops");
    let home = node.handler().path().parent().unwrap();
    let own = [
        Path::new("/dev"),
        Path::new("/etc/runcrust"),
        node.dir().path(),
        home,
    ];
    // Libraries, for a program that is not linked statically.
    let libraries = ["/usr", "/lib", "/lib64"].map(Path::new);
    for path in own
        .into_iter()
        .chain(libraries.into_iter().filter(|path| path.exists()))
    {
        bundle = bundle.bind(path, utf8(path), &["rbind", "rprivate", "rw"]);
    }
    let bundle = bundle.bind(&program, "/crust_ops", &["bind", "ro"]);
    bundle
        .args(["/crust_ops", "--config", utf8(ops.config())])
        .write()
}

on_each_delegate! {
    fn a_sidecar_works_like_a_daemon_on_the_host(delegate: Delegate) {
        let node = Node::trusted(delegate, "sandbox = \"always\"");
        let ops = Ops::stopped(&node, "");
        let bundle = sidecar(&node, &ops);
        let daemon = Container::running(&Runtime::bare(delegate), &bundle);
        wait_until("crust_ops to listen", WAIT_TIMEOUT, || {
            assert!(daemon.is_alive(), "the daemon has ended: {}", daemon.stderr());
            UnixStream::connect(ops.socket()).is_ok()
        });
        let mount_namespace = fs::read_link(format!("/proc/{}/ns/mnt", daemon.pid())).unwrap();
        assert_ne!(mount_namespace, fs::read_link("/proc/self/ns/mnt").unwrap(), "the daemon is in a container");

        let device = LoopDevice::formatted(node.dir(), "xfs", 320);
        let target = node.target(POD, "pv-1");
        let request = stage_request(&target, &device);
        ops.stage(request.clone()).unwrap();
        expect_error(ops.stats(&target), FailedPrecondition);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_eq!(app.sh("echo on > /data/file; cat /data/file"), "on");
        ops.stage(request).expect("the repeated call");
        let before = ops.stats(&target).unwrap();
        device.set_size(512 << 20);
        assert_eq!(ops.expand(&target, 0, 0).unwrap(), 512 << 20);
        let after = ops.stats(&target).unwrap();
        assert!(after.usage[0].total > before.usage[0].total, "{before:?}, {after:?}");
        let error = expect_error(ops.unstage(&target), FailedPrecondition);
        assert!(error.contains(sandbox.id()), "{error}");

        // The runtime that it starts enters the sandbox's mount namespace from the container's.
        let second = node.ext4();
        let published = node.target(POD, "pv-2");
        storage::publish(&ops, storage::publish_request(&sandbox, &published, &second)).unwrap();
        let second_app = node.app(&sandbox, &published, "/data");
        assert_eq!(second_app.sh("echo late > /data/file; cat /data/file"), "late");
        storage::stats(&ops, sandbox.id(), second.path()).unwrap();
        end([app, second_app, sandbox]);
        ops.unstage(&published).unwrap();
        ops.unstage(&target).unwrap();
        assert!(device.is_free() && second.is_free());
        expect_error(ops.stats(&target), NotFound);
        for device in [&device, &second] {
            assert_eq!(device.host_mounts(), <[String; 0]>::default());
        }

        let _ = daemon.kill("TERM");
        wait_until("the daemon to end", WAIT_TIMEOUT, || !daemon.is_alive());
        assert!(daemon.stderr().contains("SIGTERM: shutting down: waiting for calls in progress"), "{}", daemon.stderr());
    }
}

//! Tests of the harness with plain runc and crun, on which the other suites depend.

use std::fs;
use std::thread;
use std::time::Duration;

use crust_proto::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
use runcrust_tests::csi::{Csi, CsiClient, CsiRelay, Moment, filesystem};
use runcrust_tests::{
    Bundle, Container, Containerd, Delegate, Node, Runtime, TestDir, cgroup, host,
    on_each_delegate, process, wait_until,
};
use tonic::{Code, Status};

on_each_delegate! {
    fn a_pod_with_an_app_runs(delegate: Delegate) {
        let dir = TestDir::new();
        let runtime = Runtime::bare(delegate);
        let data = dir.subdir("data");
        fs::write(data.join("greeting"), "hello\n").unwrap();

        let sandbox = Container::running(&runtime, &Bundle::sandbox(&dir, "uid-1").write());
        assert_eq!(sandbox.status().as_deref(), Some("running"));
        let bundle = Bundle::app_in(&dir, &sandbox)
            .bind(&data, "/missing/mountpoint", &[])
            .readonly_rootfs()
            .write();
        let app = Container::new(&runtime, &bundle);
        let _ = app.create().success();
        assert_eq!(app.status().as_deref(), Some("created"));
        let _ = app.start().success();

        assert_eq!(app.sh("cat /missing/mountpoint/greeting"), "hello");
        let _ = app.exec(&["/bin/touch", "/x"]).failure();
        let namespace = |container: &Container, kind: &str| {
            fs::read_link(format!("/proc/{}/ns/{kind}", container.pid())).unwrap()
        };
        assert_eq!(namespace(&app, "ipc"), namespace(&sandbox, "ipc"));
        assert_ne!(namespace(&app, "pid"), namespace(&sandbox, "pid"));

        app.stop();
        let _ = app.delete().success();
        assert_eq!(app.state(), None);
        let _ = app.create().success();
        let _ = app.start().success();
        assert_eq!(app.sh("echo second"), "second");
        assert_eq!(app.last_log_error(), None);
    }

    fn a_dropped_container_leaves_nothing(delegate: Delegate) {
        let dir = TestDir::new();
        let bundle = Bundle::plain(&dir).script("sleep 1000 & sleep 1000 & wait").write();
        let container = Container::running(&Runtime::bare(delegate), &bundle);
        let (pid, root, cgroup) =
            (container.pid(), container.root().to_owned(), container.cgroup().to_owned());
        assert!(process::is_alive(pid));
        drop(container);
        assert!(!process::is_alive(pid));
        assert_eq!(cgroup::directories(&cgroup), <[std::path::PathBuf; 0]>::default());
        assert!(!root.join(bundle.id()).exists());
    }

    fn output_of_a_container_is_kept(delegate: Delegate) {
        let dir = TestDir::new();
        let bundle = Bundle::plain(&dir).script("echo out; echo err >&2; sleep 1000").write();
        let container = Container::running(&Runtime::bare(delegate), &bundle);
        wait_until("output", Duration::from_secs(5), || {
            container.stdout() == "out\n" && container.stderr() == "err\n"
        });
    }

    fn a_failed_create_is_in_the_log(delegate: Delegate) {
        let dir = TestDir::new();
        let bundle = Bundle::plain(&dir).args(["/no/such/program"]).write();
        let container = Container::new(&Runtime::bare(delegate), &bundle);
        let error = container.expect_refusal();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}

on_each_delegate! {
    fn a_pod_with_two_apps_runs_in_a_private_containerd(delegate: Delegate) {
        let dir = TestDir::new();
        let containerd = Containerd::start(&dir, &[("plain", &Runtime::bare(delegate))]);
        let cri = containerd.cri();
        assert_eq!(cri.version().unwrap().runtime_name, "containerd");
        let data = dir.subdir("data");
        fs::write(data.join("greeting"), "hello\n").unwrap();

        let pod = containerd.pod("uid-1");
        let sandbox = cri.run_pod(&pod, "plain").unwrap();
        let app = |name: &str| containerd.app(name).mount(&data, "/data");
        let one = cri.run(&sandbox, &app("one"), &pod).unwrap();
        let two = cri.run(&sandbox, &app("two"), &pod).unwrap();
        assert_eq!(cri.sh(&one, "cat /data/greeting; echo from one > /data/one"), "hello");
        assert_eq!(cri.sh(&two, "cat /data/one"), "from one");
        assert!(process::is_alive(cri.pod_pid(&sandbox).unwrap()));

        containerd.restart();
        assert_eq!(cri.sh(&one, "cat /data/one"), "from one");

        cri.stop(&one).unwrap();
        cri.remove(&one).unwrap();
        let restarted = cri.run(&sandbox, &app("one").attempt(1), &pod).unwrap();
        assert_eq!(cri.sh(&restarted, "cat /data/one"), "from one");
        let error = cri
            .run(&sandbox, &containerd.app("bad").command(&["/no/such/program"]), &pod)
            .unwrap_err();
        assert!(error.message.contains("/no/such/program"), "{error}");

        let (pid, cgroup) = (cri.pid(&two).unwrap(), containerd.cgroup().to_owned());
        drop(containerd);
        assert!(!process::is_alive(pid));
        assert_eq!(cgroup::directories(&cgroup), <[std::path::PathBuf; 0]>::default());
    }
}

#[test]
fn a_relay_records_refuses_and_delays_calls() {
    let node = Node::trusted(Delegate::Runc, "");
    let csi = Csi::start(&node);
    let relay = CsiRelay::start(&csi.socket().with_file_name("relay.sock"), csi.socket());
    let client = CsiClient::new(relay.socket());
    let volume = csi.volume("pv-1", filesystem("ext4"));
    let target = csi.target("uid-1", "pv-1");
    let mounted = || host::mounts_below(&target).len();

    relay.refuse::<NodeStageVolumeRequest>(Status::unavailable("a test"));
    let refused = client.call(volume.stage()).unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::Unavailable, "a test")
    );
    assert_eq!(
        csi.devices(&volume.id),
        <[std::path::PathBuf; 0]>::default()
    );
    relay.clear_faults();
    client.call(volume.stage()).unwrap();

    relay.hold::<NodePublishVolumeRequest>(Moment::Before);
    thread::scope(|scope| {
        let client = CsiClient::new(relay.socket());
        let (volume, target) = (&volume, &target);
        let call = scope.spawn(move || client.call(volume.publish(target)));
        relay.wait_held(Moment::Before);
        assert_eq!(mounted(), 0);
        relay.hold::<NodePublishVolumeRequest>(Moment::After);
        relay.wait_held(Moment::After);
        assert_eq!(mounted(), 1);
        assert!(!call.is_finished());
        relay.clear_faults();
        call.join().unwrap().unwrap();
    });
    csi.restart(&[]);
    client
        .call(volume.unpublish(&target))
        .expect("a call to the restarted driver");
    let publish: Vec<NodePublishVolumeRequest> = relay.requests();
    assert_eq!(publish, [volume.publish(&target)]);
    let steps = ["Stage", "Stage", "Publish", "Unpublish"];
    assert_eq!(
        relay.steps(),
        steps.map(|it| format!("Node{it}VolumeRequest"))
    );
}

//! Servers that stop, restart, move, or can't be reached, during each operation.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use runcrust_tests::container::{Container, end};
use runcrust_tests::nfs_server::{HostsEntry, NfsServer, RECOVERY_TIMEOUT};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{
    Bundle, Node, POD, Pod, Run, mounts, on_each_delegate, process, process_name, wait_until,
};
use serde_json::{Value, json};

use crate::pods::OTHER_POD;
use crate::shares::{Share, end_pod, stage};

/// Longer than any wait for a server, on an emulated processor too. The server's own clients wait for minutes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The timeout of a create, with the time that its end may take on an emulated processor.
const CREATE_TIMEOUT: Duration = Duration::from_secs(110 + 30);

/// Returns the condition in the volume's stats: whether it is abnormal, and the message.
#[track_caller]
fn condition(share: &Share) -> (bool, String) {
    let started = Instant::now();
    let stats = share.node.stats(&share.target).success().stdout;
    assert!(started.elapsed() < TIMEOUT, "stats waited for the server");
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let condition = &stats["volume_condition"];
    assert_eq!(
        stats["usage"].as_array().unwrap().is_empty(),
        condition["abnormal"],
        "{stats}"
    );
    (
        condition["abnormal"].as_bool().unwrap(),
        condition["message"].as_str().unwrap().to_owned(),
    )
}

/// Leaves a program in a container that has written to a file since the server was blocked.
///
/// Each close of a descriptor of the file waits for the server, and so the program keeps its only one, and says with a
/// directory that it has written: opening a file would replace its standard output. `path` is the file's path in the
/// export.
fn write_without_server(app: &Container, server: &NfsServer, path: &str) {
    let program =
        "while [ ! -e /blocked ]; do sleep 0.1; done; echo hello; mkdir /written; sleep 1000";
    let _ = app.sh(&format!(
        "({program}) > /data/file 2> /dev/null < /dev/null &"
    ));
    let file = server.directory().join(path);
    wait_until("the file", WAIT_TIMEOUT, || file.exists());
    server.block();
    let _ = app.sh("touch /blocked");
    wait_until("the write", WAIT_TIMEOUT, || {
        app.sh("ls -d /written 2> /dev/null | wc -l") == "1"
    });
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_create_without_a_server_is_refused_and_works_later(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        share.server.block();
        let started = Instant::now();
        let pod = share.pod();
        let refused = pod.expect_refusal();
        assert!(started.elapsed() < TIMEOUT, "the create waited for the server");
        for part in [&*share.server.share(), "doesn't answer", "timed out", "firewall"] {
            assert!(refused.contains(part), "{part:?} isn't in: {refused}");
        }
        let _ = share.node.unstage(&share.target).success();
        let _ = stage(&share.node, "pv-1", "nfs4", &share.server.share(), &[]);
        share.server.unblock();

        share.server.stop();
        let refused = pod.expect_refusal();
        assert!(refused.contains("Connection refused"), "{refused}");
        share.server.resume();
        let app = pod.app();
        let _ = app.sh("echo hello > /data/file");
        end_pod(&share.node, pod, [app]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn stats_report_a_server_that_cannot_be_reached(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        assert_eq!(condition(&share), (false, String::new()));
        share.server.block();
        let (abnormal, message) = condition(&share);
        assert!(abnormal && message.contains("hasn't answered within 5 seconds"), "{message}");
        assert!(message.contains(&share.server.share()), "{message}");
        let bundle = share.node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]).write();
        for verb in [&["list"][..], &["inspect", utf8(&share.target)], &["explain", utf8(bundle.path())], &["gc"]] {
            let started = Instant::now();
            let _ = share.node.handler().crust(verb).success();
            assert!(started.elapsed() < TIMEOUT, "{verb:?} waited for the server");
        }
        let second = share.node.container(&bundle).expect_refusal();
        assert!(second.contains("hasn't answered within 10 seconds"), "{second}");
        share.server.unblock();
        wait_until("the share to recover", RECOVERY_TIMEOUT, || !condition(&share).0);
        assert_eq!(app.sh("ls /data"), "");
        end_pod(&share.node, pod, [app]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn fs_group_waits_for_a_blocked_server(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let files: Vec<_> = (0..3000).map(|number| server.directory().join(number.to_string())).collect();
        for file in &files {
            fs::write(file, "").unwrap();
        }
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        let changed = || files.iter().filter(|file| fs::metadata(file).unwrap().gid() == 2000).count();
        let pod = thread::scope(|scope| {
            // The sandbox's hook applies fsGroup.
            let pod = scope.spawn(|| Pod::with_staged_volume(&node, POD, target.clone()));
            wait_until("the walk to start", WAIT_TIMEOUT, || changed() > 0);
            server.block();
            assert!(changed() < files.len(), "the walk had ended before the server was blocked");
            server.unblock();
            pod.join().unwrap()
        });
        assert_eq!(changed(), files.len());
        let app = pod.app();
        end_pod(&node, pod, [app]);
    }

    /// The process must not wait for the server when it ends, although it has the only reference to the new mount.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_create_ends_while_its_server_is_blocked(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let files: Vec<_> = (0..3000).map(|number| server.directory().join(number.to_string())).collect();
        for file in &files {
            fs::write(file, "").unwrap();
        }
        let changed = || files.iter().filter(|file| fs::metadata(file).unwrap().gid() == 2000).count();
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        // Without a sandbox, the create mounts the share itself.
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let app = node.container(&bundle);
        let mut create = app.spawn(app.create_command());
        wait_until("the walk to start", WAIT_TIMEOUT, || {
            assert_eq!(create.try_wait().unwrap(), None, "{:?}", app.log_lines());
            changed() > 0
        });
        server.block();
        assert!(changed() < files.len(), "the walk had ended before the server was blocked");
        wait_until("the create to end", CREATE_TIMEOUT, || create.try_wait().unwrap().is_some());
        let lines = app.log_lines();
        let [line] = lines.as_slice() else { panic!("not one line in the log: {lines:?}") };
        assert!(line.msg.contains("before the deadline"), "{}", line.msg);
        server.unblock();
        let app = node.run(&bundle);
        assert_eq!(changed(), files.len());
        end([app]);
        node.unstage_all(&[&target]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_removed_export_is_a_stale_handle(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let directory = server.directory().join("volume");
        fs::create_dir(&directory).unwrap();
        let target = stage(&node, "pv-1", "nfs4", &server.share_at("/volume"), &[]);
        let share = Share { target, server, node };
        let pod = share.pod();
        let app = pod.app();
        fs::remove_dir(&directory).unwrap();
        let (abnormal, message) = condition(&share);
        assert!(abnormal && message.contains("ESTALE") && message.contains("was removed or replaced"), "{message}");
        // The new directory is another one.
        fs::create_dir(&directory).unwrap();
        assert!(condition(&share).0);
        end([app]);
        end([pod.sandbox]);
        let pod = share.pod();
        let app = pod.app();
        assert_eq!(condition(&share), (false, String::new()));
        end_pod(&share.node, pod, [app]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_workload_continues_after_its_server_was_restarted(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        let _ = app.sh("echo before > /data/file");
        share.server.stop();
        let _ = app.sh("(echo after >> /data/file; echo done > /done) > /dev/null 2>&1 &");
        assert_eq!(app.sh("ls /done 2>/dev/null | wc -l"), "0");
        share.server.resume();
        wait_until("the write to end", RECOVERY_TIMEOUT, || app.sh("ls /done 2>/dev/null | wc -l") == "1");
        assert_eq!(fs::read_to_string(share.server.directory().join("file")).unwrap(), "before\nafter\n");
        end_pod(&share.node, pod, [app]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_pod_of_an_unreachable_server_can_be_killed(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        let _ = app.sh("echo hello > /data/file");
        share.server.block();
        // It waits for the server until it is killed.
        let _ = app.sh("(cat /data/other; echo done > /done) > /dev/null 2>&1 &");
        let started = Instant::now();
        end_pod(&share.node, pod, [app]);
        assert!(started.elapsed() < TIMEOUT, "the end waited for the server");
    }

    /// The kernel ends its session with the server when the last mount of it goes away, and waits for that.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn an_idle_pod_ends_while_its_server_is_blocked(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        let _ = app.sh("echo hello > /data/file");
        share.server.block();
        let started = Instant::now();
        process::kill_and_wait(pod.sandbox.pid());
        end_pod(&share.node, pod, [app]);
        assert!(started.elapsed() < TIMEOUT, "the end waited for the server");
    }

    /// The kernel wants to write the program's data to the server before the program ends.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_pod_with_unwritten_data_is_ended_by_gc(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        write_without_server(&app, &share.server, "file");
        let gc = || share.node.handler().crust(&["gc", "--json"]).success().stdout;
        assert!(!gc().contains("\"requests\""), "a running container was ended");
        let pid = app.pid();
        let _ = app.kill("KILL");
        let before = gc();
        assert!(!process::is_alive(pid), "{before}");
        for part in ["\"requests\"", app.id(), "doesn't answer", &*share.server.share()] {
            assert!(before.contains(part), "{part:?} isn't in: {before}");
        }
        end_pod(&share.node, pod, [app]);
    }

    /// The kernel has one superblock for both directories of the export.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn gc_keeps_a_killed_pod_whose_superblock_others_use(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let shares = ["/one", "/two"].map(|path| {
            fs::create_dir(server.directory().join(&path[1..])).unwrap();
            server.share_at(path)
        });
        let target = stage(&node, "pv-1", "nfs4", &shares[0], &[]);
        let other = node.target(OTHER_POD, "pv-1");
        let _ = node.try_stage_as("nfs4", &other, Path::new(&shares[1]), &[]).success();
        let pod = Pod::with_staged_volume(&node, POD, target);
        let second = Pod::with_staged_volume(&node, OTHER_POD, other);
        let (app, other_app) = (pod.app(), second.app());
        assert_eq!(app.sh("stat -c %d /data"), other_app.sh("stat -c %d /data"));
        write_without_server(&app, &server, "one/file");
        let pid = app.pid();
        let _ = app.kill("KILL");
        let gc = || node.handler().crust(&["gc", "--json"]).success().stdout;
        let left = gc();
        assert!(left.contains("uses the same superblock") && left.contains(OTHER_POD), "{left}");
        assert!(process::is_alive(pid));
        server.unblock();
        wait_until("the container to end", RECOVERY_TIMEOUT, || !process::is_alive(pid));
        end([app, other_app]);
        let _ = node.unstage(&second.target);
        end([second.sandbox]);
        end([pod.sandbox]);
        node.unstage_all(&[&second.target, &pod.target]);
    }

    /// A CSI driver's own mount, for example.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn gc_keeps_a_killed_pod_while_the_host_has_its_superblock(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let directory = share.server.directory().join("other");
        fs::create_dir(&directory).unwrap();
        let pod = share.pod();
        let app = pod.app();
        let mount_point = share.node.dir().subdir("host");
        let mut mount = Command::new("mount");
        let mount = mount.args(["-t", "nfs4", &share.server.share_at("/other"), utf8(&mount_point)]);
        let _ = Run::capture(mount).success();
        let superblock = fs::metadata(&mount_point).unwrap().dev();
        assert_eq!(app.sh("stat -c %d /data"), superblock.to_string());
        write_without_server(&app, &share.server, "file");
        let pid = app.pid();
        let _ = app.kill("KILL");
        let gc = || share.node.handler().crust(&["gc", "--json"]).success().stdout;
        let left = gc();
        assert!(left.contains("has the same superblock"), "{left}");
        assert!(process::is_alive(pid));
        mounts::unmount(&mount_point);
        // A create of another test may have a copy of the host's mount table for a moment.
        wait_until("gc to abort the requests", WAIT_TIMEOUT, || {
            let aborted = gc();
            aborted.contains("\"requests\"") && !process::is_alive(pid)
        });
        end_pod(&share.node, pod, [app]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_server_in_the_pods_network_is_reached_from_there(delegate: Delegate) {
        let node = Node::with(delegate, "nfs_network = \"sandbox\"");
        let server = NfsServer::start(node.dir());
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &[]);
        // The host can't reach the server, and the pod can: it is in the server's network namespace.
        server.block();
        let mut bundle = node.sandbox_bundle(POD);
        let path = node.dir().join("netns");
        fs::write(&path, "").unwrap();
        mounts::bind(&server.network_namespace(), &path);
        let network = json!({"type": "network", "path": path});
        let namespaces = bundle.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        namespaces.push(network);
        let sandbox = node.run(&bundle.write());
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo hello > /data/file");
        assert_eq!(fs::read_to_string(server.directory().join("file")).unwrap(), "hello\n");
        end([app, sandbox]);
        mounts::unmount(&path);
        node.unstage_all(&[&target]);
    }

    /// The name leads to another server from one pod to the next.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_moved_server_is_found_by_its_name(delegate: Delegate) {
        let node = Node::new(delegate);
        let first = NfsServer::start(node.dir());
        let servers = [&first, &first.start_twin(node.dir())];
        let name = format!("{}.test", process_name());
        let share = format!("{name}:{}", first.directory().display());
        let target = stage(&node, "pv-1", "nfs4", &share, &[]);
        for server in servers {
            let _entry = HostsEntry::add(&server.address(), &name);
            let pod = Pod::with_staged_volume(&node, POD, target.clone());
            let app = pod.app();
            let inspected = node.handler().crust(&["inspect", "--json", &share]).success().stdout;
            let inspected: Value = serde_json::from_str(&inspected).unwrap();
            assert_eq!(inspected["share"]["server_addresses"], json!([server.address()]));
            end([app]);
            end([pod.sandbox]);
        }
        let pod = Pod::with_staged_volume(&node, POD, target.clone());
        let refused = pod.expect_refusal();
        assert!(refused.contains(&name) && refused.contains("can't be resolved"), "{refused}");
        end_pod(&node, pod, []);
    }
}

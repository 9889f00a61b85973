//! A share that is staged and mounted: versions, options, sources, and what is reported about it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use runcrust_tests::container::end;
use runcrust_tests::nfs_server::{HostsEntry, NfsServer};
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{
    Container, Delegate, Node, POD, Pod, Run, host, mounts, on_each_delegate, process_name,
    wait_until,
};
use serde_json::{Value, json};

/// Longer than the probe of a server, on an emulated processor too. The kernel's own mount waits for minutes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Stages a share for a volume of the pod [`POD`].
#[track_caller]
pub(crate) fn stage(
    node: &Node,
    volume: &str,
    fstype: &str,
    share: &str,
    options: &[&str],
) -> PathBuf {
    let target = node.target(POD, volume);
    let _ = node
        .try_stage_as(fstype, &target, Path::new(share), options)
        .success();
    target
}

/// A node, a server, and the server's share, staged as `pv-1` of the pod [`POD`].
pub(crate) struct Share {
    pub(crate) target: PathBuf,
    pub(crate) server: NfsServer,
    pub(crate) node: Node,
}

impl Share {
    pub(crate) fn new(delegate: Delegate, fstype: &str, options: &[&str]) -> Self {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let target = stage(&node, "pv-1", fstype, &server.share(), options);
        Self {
            target,
            server,
            node,
        }
    }

    pub(crate) fn pod(&self) -> Pod<'_> {
        Pod::with_staged_volume(&self.node, POD, self.target.clone())
    }
}

/// Ends the node's last pod, unstages its volume, and checks that nothing is left.
#[track_caller]
pub(crate) fn end_pod(node: &Node, pod: Pod<'_>, apps: impl IntoIterator<Item = Container>) {
    end(apps);
    end([pod.sandbox]);
    node.unstage_all(&[&pod.target]);
}

/// Asserts that the kernel has no client of the server any more.
#[track_caller]
pub(crate) fn assert_no_client(server: &NfsServer) {
    wait_until("the last mount to end", WAIT_TIMEOUT, || {
        !server.has_client()
    });
}

/// Returns the host's mounts of shares, as lines of mountinfo.
fn mounts_on_host() -> Vec<String> {
    let lines = host::mounts().into_iter().map(|mount| mount.line);
    lines
        .filter(|line| line.contains(" - nfs4 ") || line.contains(" - nfs "))
        .collect()
}

/// Returns the mount of the volume in a container as a line of its mount table.
fn mount_in(app: &Container) -> String {
    app.sh("grep ' /data ' /proc/self/mountinfo")
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn each_version_is_mounted_in_the_sandbox_and_unstaged(delegate: Delegate) {
        for (fstype, options, kernels_type, version) in [
            ("nfs4", &[][..], "nfs4", "vers=4.2"),
            ("nfs", &[], "nfs4", "vers=4.2"),
            ("nfs4", &["--option", "vers=4.0"], "nfs4", "vers=4.0"),
            ("nfs", &["--option", "nfsvers=3,nolock"], "nfs", "vers=3"),
        ] {
            let share = Share::new(delegate, fstype, options);
            let pod = share.pod();
            let (one, two) = (pod.app(), pod.app());
            let _ = one.sh("echo hello > /data/file");
            assert_eq!(two.sh("cat /data/file"), "hello");
            assert_eq!(one.sh("stat -c %d /data"), two.sh("stat -c %d /data"));
            let mounted = mount_in(&one);
            for part in [&format!(" - {kernels_type} "), version] {
                assert!(mounted.contains(part), "{part} isn't in: {mounted}");
            }
            assert_eq!(fs::read(share.server.directory().join("file")).unwrap(), b"hello\n");
            assert_eq!(mounts_on_host(), <[String; 0]>::default());
            end_pod(&share.node, pod, [one, two]);
            assert_no_client(&share.server);
        }
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn versions_are_negotiated_down_to_3(delegate: Delegate) {
        let share = Share::new(delegate, "nfs", &["--option", "nolock"]);
        for (missing, version) in [
            (&["4.2"][..], "vers=4.1"),
            (&["4.2", "4.1"], "vers=4.0"),
            (&["4"], "vers=3"),
        ] {
            share.server.restart_without(missing);
            let pod = share.pod();
            let app = pod.app();
            let mounted = mount_in(&app);
            assert!(mounted.contains(version), "{version} isn't in: {mounted}");
            end([app]);
            end([pod.sandbox]);
        }
        assert_no_client(&share.server);
        // A version that the server lacks isn't replaced by another one.
        let target = stage(&share.node, "pv-2", "nfs", &share.server.share(), &["--option", "vers=4.2"]);
        let pod = Pod::with_staged_volume(&share.node, POD, target);
        let refused = share.node.container(&share.node.app_bundle(&pod.sandbox).bind(&pod.target, "/data", &[]).write());
        let refused = refused.expect_refusal();
        assert!(refused.contains("version 4.2") && refused.contains("EPROTONOSUPPORT"), "{refused}");
        end([pod.sandbox]);
        share.node.unstage_all(&[&share.target, &pod.target]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn version_3_needs_statd_for_locks(delegate: Delegate) {
        let systemctl = |action: &str| {
            let _ = Run::capture(Command::new("systemctl").args([action, "rpc-statd.service"])).success();
        };
        systemctl("stop");
        let share = Share::new(delegate, "nfs", &["--option", "vers=3"]);
        let pod = share.pod();
        let refused = pod.expect_refusal();
        assert!(refused.contains("rpc.statd doesn't run") && refused.contains("nolock"), "{refused}");
        systemctl("start");
        let app = pod.app();
        let _ = app.sh("echo hello > /data/file");
        let file = format!("/proc/{}/root/data/file", app.pid());
        File::options().write(true).open(file).unwrap().lock().expect("a lock");
        end_pod(&share.node, pod, [app]);
        assert_no_client(&share.server);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_server_is_reached_by_any_of_its_addresses(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let name = format!("{}-many.test", process_name());
        let _dead = HostsEntry::add(&server.address_without_server(), &name);
        let _alive = HostsEntry::add(&server.address(), &name);
        let by_name = format!("{name}:{}", server.directory().display());
        for (index, share) in [by_name, server.ipv6_share()].iter().enumerate() {
            let target = stage(&node, &format!("pv-{index}"), "nfs4", share, &[]);
            let pod = Pod::with_staged_volume(&node, POD, target);
            let app = pod.app();
            let _ = app.sh("echo hello > /data/file");
            let _ = node.stats(&pod.target).success();
            end_pod(&node, pod, [app]);
        }
        // The answer of one address counts more than the silence of another.
        let missing = stage(&node, "pv-1", "nfs4", &format!("{name}:/missing"), &[]);
        let pod = Pod::with_staged_volume(&node, POD, missing);
        let refused = pod.expect_refusal();
        assert!(refused.contains("ENOENT") && refused.contains(&server.address()), "{refused}");
        end([pod.sandbox]);
        node.unstage_all(&[&pod.target]);
        assert_no_client(&server);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_firewall_between_rpcbind_and_nfs_is_noticed(delegate: Delegate) {
        let share = Share::new(delegate, "nfs", &["--option", "vers=3,nolock"]);
        share.server.block_port(2049);
        let pod = share.pod();
        let start = Instant::now();
        let refused = pod.expect_refusal();
        share.server.unblock_port(2049);
        assert!(refused.contains(":2049 (NFS version 3)") && refused.contains("firewall"), "{refused}");
        assert!(start.elapsed() < TIMEOUT, "the refusal took {:?}", start.elapsed());
        let app = pod.app();
        let _ = app.sh("echo hello > /data/file");
        end_pod(&share.node, pod, [app]);
        assert_no_client(&share.server);
    }

    /// The kernel looks for rpc.statd in the network namespace of the mount.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn version_3_takes_no_locks_from_the_network_of_a_pod(delegate: Delegate) {
        let node = Node::with(delegate, "nfs_network = \"sandbox\"");
        let server = NfsServer::start(node.dir());
        let locking = stage(&node, "pv-1", "nfs", &server.share(), &["--option", "vers=3"]);
        let local = stage(&node, "pv-2", "nfs", &server.share(), &["--option", "vers=3,local_lock=all"]);
        // The pod is in the server's network namespace.
        let network = node.dir().join("netns");
        fs::write(&network, "").unwrap();
        mounts::bind(&server.network_namespace(), &network);
        let mut bundle = node.sandbox_bundle(POD);
        let namespaces = bundle.spec_mut()["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
        namespaces.push(json!({"type": "network", "path": network}));
        let sandbox = node.run(&bundle.write());
        let refused = node.container(&node.app_bundle(&sandbox).bind(&locking, "/data", &[]).write());
        let refused = refused.expect_refusal();
        assert!(refused.contains("rpc.statd") && refused.contains("local_lock=all"), "{refused}");
        let app = node.app(&sandbox, &local, "/data");
        let file = format!("/proc/{}/root/data/file", app.pid());
        File::create(file).unwrap().lock().expect("a lock");
        end([app, sandbox]);
        mounts::unmount(&network);
        node.unstage_all(&[&locking, &local]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn stats_and_descriptions_name_the_share(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let pod = share.pod();
        let app = pod.app();
        let source = share.server.share();

        let stats: Value = serde_json::from_str(&share.node.stats(&share.target).success().stdout).unwrap();
        assert_eq!(stats["volume_condition"]["abnormal"], false, "{stats}");
        let total = stats["usage"][0]["total"].as_u64().unwrap();
        let seen: u64 = app.sh("stat -f -c '%b %S' /data | (read b s; echo $((b * s)))").parse().unwrap();
        assert_eq!((&stats["usage"][0]["unit"], total), (&"BYTES".into(), seen));
        assert_eq!(stats["usage"][1]["unit"], "INODES");

        let crust = |arguments: &[&str]| -> Value {
            serde_json::from_str(&share.node.handler().crust(arguments).success().stdout).unwrap()
        };
        let listed = &crust(&["list", "--json"])["volumes"][0];
        assert_eq!((&listed["device"], &listed["device_number"]), (&Value::from(&*source), &Value::Null));
        assert_eq!(listed["state"], "in use");
        let inspected = crust(&["inspect", "--json", &source]);
        assert_eq!(inspected["share"]["source"], *source, "{inspected}");
        assert_eq!(inspected["share"]["server_addresses"][0], share.server.address());
        assert_eq!(inspected["block_device"], Value::Null);
        assert_eq!(inspected["unstage_obstacles"].as_array().unwrap().len(), 2, "{inspected}");
        let text = share.node.handler().crust(&["inspect", &source]).success().stdout;
        assert!(text.contains(&format!("share        {source}")), "{text}");

        let resized = share.node.resize(&share.target, 1 << 30, 0).failure().stderr;
        assert!(resized.contains("UNIMPLEMENTED") && resized.contains("on the server"), "{resized}");
        let refused = share.node.unstage(&share.target).failure().stderr;
        assert!(refused.contains("in use by"), "{refused}");
        end([app]);
        end([pod.sandbox]);
        let resized = share.node.resize(&share.target, 1 << 30, 0).failure().stderr;
        assert!(resized.contains("UNIMPLEMENTED"), "{resized}");
        share.node.unstage_all(&[&share.target]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn options_and_read_only_apply_to_the_share(delegate: Delegate) {
        let node = Node::with(delegate, "default_options = [\"nosuid\", \"discard\"]");
        // The server prefers a flavor that needs credentials.
        let server = NfsServer::start_with(node.dir(), "sec=krb5:sys,rw,no_root_squash");
        fs::write(server.directory().join("file"), "text").unwrap();
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--option", "soft,timeo=70,nconnect=2,noatime"]);
        let read_only = stage(&node, "pv-2", "nfs4", &server.share(), &["--option", "ro"]);
        let view = stage(&node, "pv-3", "nfs4", &server.share(), &["--read-only"]);
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&target, "/data", &[]);
        let bundle = bundle.bind(&read_only, "/ro", &[]).bind(&view, "/view", &[]);
        let app = node.run(&bundle.write());
        let mounted = mount_in(&app);
        for part in ["nosuid", "noatime", "soft", "timeo=70", "nconnect=2", "sec=sys"] {
            assert!(mounted.contains(part), "{part} isn't in: {mounted}");
        }
        assert!(!app.sh("grep ' /view ' /proc/self/mountinfo").contains("timeo=70"), "another volume got its options");
        for directory in ["/ro", "/view"] {
            assert_eq!(app.sh(&format!("cat {directory}/file")), "text");
            let refused = app.exec(&["/bin/touch", &format!("{directory}/new")]).failure();
            assert!(refused.stderr.contains("Read-only file system"), "{refused}");
        }
        end([app, sandbox]);
        node.unstage_all(&[&target, &read_only, &view]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_path_with_odd_characters_or_of_great_length_is_mounted(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let long = format!("{}/{}", "a".repeat(200), "b".repeat(200));
        let mut targets = Vec::new();
        for (index, path) in ["a b,c", "d\te\nf", "g:/h", "#\\i\"'*", "ü", &long].into_iter().enumerate() {
            let directory = server.directory().join(path);
            fs::create_dir_all(&directory).unwrap();
            let target = stage(&node, &format!("pv-{index}"), "nfs", &server.share_at(&format!("/{path}")), &["--option", "ro"]);
            fs::write(directory.join("mark"), path).unwrap();
            let pod = Pod::with_staged_volume(&node, POD, target);
            let app = pod.app();
            assert_eq!(app.sh("cat /data/mark"), path);
            let _ = node.stats(&pod.target).success();
            end([app]);
            end([pod.sandbox]);
            targets.push(pod.target);
        }
        node.unstage_all(&targets.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_subpath_is_found_or_created_inside_the_share_only(delegate: Delegate) {
        let share = Share::new(delegate, "nfs4", &[]);
        let root = share.server.directory();
        fs::create_dir_all(root.join("there/deep")).unwrap();
        fs::write(root.join("there/deep/mark"), "deep").unwrap();
        std::os::unix::fs::symlink("there/deep", root.join("inside")).unwrap();
        for (name, to) in [("outside", "/etc"), ("upwards", "../../../../etc"), ("proc", "/proc/self/root")] {
            std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        }
        let sandbox = share.node.sandbox(POD);
        fs::create_dir_all(share.target.join("new/and/deep")).unwrap();
        let bundle = share.node.app_bundle(&sandbox)
            .bind(share.target.join("there/deep"), "/deep", &[])
            .bind(share.target.join("inside"), "/inside", &[])
            .bind(share.target.join("new/and/deep"), "/new", &[]);
        let app = share.node.run(&bundle.write());
        assert_eq!(app.sh("cat /deep/mark /inside/mark"), "deepdeep");
        let _ = app.sh("echo new > /new/mark");
        assert_eq!(fs::read(root.join("new/and/deep/mark")).unwrap(), b"new\n");
        for escape in ["outside", "upwards", "proc/etc"] {
            let bundle = share.node.app_bundle(&sandbox).bind(share.target.join(escape), "/data", &[]).write();
            let error = share.node.container(&bundle).expect_refusal();
            assert!(error.contains("volume pv-1") && error.contains(escape), "{error}");
        }
        end([app, sandbox]);
        share.node.unstage_all(&[&share.target]);
    }
}

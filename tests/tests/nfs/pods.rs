//! Pods with shares in containerd.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use runcrust_tests::container::end;
use runcrust_tests::nfs_server::NfsServer;
use runcrust_tests::node::utf8;
use runcrust_tests::{Containerd, CriPod, Node, POD, on_each_delegate};
use serde_json::Value;

use crate::shares::{assert_no_client, stage};

pub(crate) const OTHER_POD: &str = "bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee";

fn containerd(node: &Node) -> Containerd {
    Containerd::start(node.dir(), &[("crust", &node.handler().runtime())])
}

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn pods_of_containerd_share_an_export(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        let other = node.target(OTHER_POD, "pv-1");
        let _ = node.try_stage_as("nfs4", &other, Path::new(&server.share()), &[]).success();
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let (pod, second) = (CriPod::run(&containerd, POD), CriPod::run(&containerd, OTHER_POD));
        let one = pod.app("one", &target);
        let two = pod.app("two", &target.join("sub"));
        let three = second.app("three", &other);
        let _ = cri.sh(&one, "echo hello > /data/sub/file");
        assert_eq!(cri.sh(&two, "cat /data/file"), "hello");
        assert_eq!(cri.sh(&two, "stat -c '%g %a' /data"), "2000 2775");
        let numbers = [&one, &two, &three].map(|app| cri.sh(app, "stat -c %d /data"));
        assert_eq!(numbers[0], numbers[1], "the pod has two superblocks");
        let _ = cri.sh(&three, "echo other > /data/other");
        assert_eq!(cri.sh(&one, "cat /data/other"), "other");
        let _ = node.stats(&target).success();
        second.end();
        assert_eq!(cri.sh(&one, "cat /data/other"), "other");
        pod.end_and_unstage(&node, &[&target, &other]);
        assert_eq!(fs::read(server.directory().join("sub/file")).unwrap(), b"hello\n");
    }

    /// Both have the same superblock, because they are in one file system of the server.
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn two_shares_of_one_export_are_told_apart(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let [first, second] = ["one", "two"].map(|name| {
            fs::create_dir(server.directory().join(name)).unwrap();
            stage(&node, name, "nfs4", &server.share_at(&format!("/{name}")), &[])
        });
        let sandbox = node.sandbox(POD);
        let bundle = node.app_bundle(&sandbox).bind(&first, "/one", &[]).bind(&second, "/two", &[]);
        let app = node.run(&bundle.write());
        assert_eq!(app.sh("stat -c %d /one"), app.sh("stat -c %d /two"));
        for (target, mount_point, other) in [(&first, "/one", "/two"), (&second, "/two", "/one")] {
            let inspected = node.handler().crust(&["inspect", utf8(target), "--json"]).success().stdout;
            let shown = |path: &str| inspected.contains(&format!("\"{path}\""));
            assert!(shown(mount_point) && !shown(other), "{inspected}");
        }
        fs::remove_dir(server.directory().join("two")).unwrap();
        let is_abnormal = |target| {
            let stats: Value = serde_json::from_str(&node.stats(target).success().stdout).unwrap();
            stats["volume_condition"]["abnormal"].as_bool().unwrap()
        };
        assert_eq!([is_abnormal(&first), is_abnormal(&second)], [false, true]);
        end([app, sandbox]);
        node.unstage_all(&[&first, &second]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_share_for_one_pod_is_refused_to_a_second_one(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let exclusive = ["--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &exclusive);
        let other = node.target(OTHER_POD, "pv-1");
        // Other options mean another superblock, but the same data.
        let options = ["--option", "soft"];
        let _ = node.try_stage_as("nfs4", &other, Path::new(&server.share()), &options).success();
        let containerd = containerd(&node);
        let pod = CriPod::run(&containerd, POD);
        let _one = pod.app("one", &target);
        let second = CriPod::run(&containerd, OTHER_POD);
        let refused = second.expect_refusal(&second.with("two", &other)).to_string();
        for part in ["SINGLE_NODE_SINGLE_WRITER", POD, "volume pv-1"] {
            assert!(refused.contains(part), "{part} isn't in: {refused}");
        }
        pod.end();
        let allowed = second.app("two", &other);
        assert_eq!(containerd.cri().sh(&allowed, "ls /data"), "");
        second.end_and_unstage(&node, &[&target, &other]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn twenty_pods_share_one_export(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let containerd = containerd(&node);
        let cri = containerd.cri();
        let pods: Vec<_> = (0..20)
            .map(|index| {
                let uid = format!("{index:08}-bbbb-cccc-dddd-eeeeeeeeeeee");
                let target = node.target(&uid, "pv-1");
                let _ = node.try_stage_as("nfs4", &target, Path::new(&server.share()), &[]).success();
                let pod = CriPod::run(&containerd, &uid);
                let app = pod.app("app", &target);
                let _ = cri.sh(&app, &format!("echo {index} > /data/{index}"));
                (pod, app, target)
            })
            .collect();
        for (_, app, _) in &pods {
            assert_eq!(cri.sh(app, "ls /data | wc -l"), "20");
        }
        let numbers: BTreeSet<String> = pods.iter().map(|(_, app, _)| cri.sh(app, "stat -c %d /data")).collect();
        assert_eq!(numbers.len(), 1, "{numbers:?}");
        for (pod, ..) in &pods {
            pod.end();
        }
        node.unstage_all(&pods.iter().map(|(_, _, target)| target.as_path()).collect::<Vec<_>>());
        assert_no_client(&server);
        assert_eq!(fs::read_dir(server.directory()).unwrap().count(), 20);
    }
}

//! fsGroup on shares, as the server permits it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use runcrust_tests::nfs_server::NfsServer;
use runcrust_tests::{Node, POD, Pod, on_each_delegate};
use serde_json::Value;

use crate::shares::{end_pod, stage};

on_each_delegate! {
    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn fs_group_is_applied_once_for_each_pod(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start(node.dir());
        let root = server.directory();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("a/link")).unwrap();
        let before = fs::metadata("/etc/passwd").unwrap();
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        let pod = Pod::with_staged_volume(&node, POD, target);
        let app = pod.app();
        let group = |path: &str| fs::symlink_metadata(root.join(path)).unwrap();
        for (path, mode) in [("", 0o2775), ("a", 0o2775), ("a/b", 0o2775), ("a/b/file", 0o664)] {
            let found = group(path);
            assert_eq!((found.gid(), found.mode() & 0o7777), (2000, mode), "{path}");
        }
        let after = fs::metadata("/etc/passwd").unwrap();
        assert_eq!((after.gid(), after.mode()), (before.gid(), before.mode()));
        // A second container of the pod must not change what the first one has changed.
        let _ = app.sh("chmod 700 /data/a");
        let second = pod.app();
        assert_eq!(group("a").mode() & 0o777, 0o700);
        end_pod(&node, pod, [app, second]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_server_that_maps_root_to_nobody_refuses_fs_group(delegate: Delegate) {
        let node = Node::new(delegate);
        let server = NfsServer::start_with(node.dir(), "rw,root_squash");
        fs::write(server.directory().join("file"), "x").unwrap();
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        let pod = Pod::with_staged_volume(&node, POD, target);
        let refused = pod.expect_refusal();
        for part in ["EPERM", "root_squash", "fsGroup", &server.share()] {
            assert!(refused.contains(part), "{part:?} isn't in: {refused}");
        }
        pod.end([]);
    }

    #[ignore = "needs NFS; runs in the guest: make vm-test"]
    fn a_refused_fs_group_can_be_reported_instead(delegate: Delegate) {
        let node = Node::with(delegate, "refused_fs_group = \"report\"");
        let server = NfsServer::start_with(node.dir(), "rw,root_squash");
        fs::set_permissions(server.directory(), fs::Permissions::from_mode(0o777)).unwrap();
        let target = stage(&node, "pv-1", "nfs4", &server.share(), &["--fs-group", "2000"]);
        let pod = Pod::with_staged_volume(&node, POD, target);
        let app = pod.app();
        let _ = app.sh("echo x > /data/file");
        let stats: Value = serde_json::from_str(&node.stats(&pod.target).success().stdout).unwrap();
        let condition = &stats["volume_condition"];
        assert_eq!(condition["abnormal"], true);
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains("fsGroup 2000") && message.contains("refused"), "{message}");
        assert!(stats["usage"][0]["total"].as_u64().unwrap() > 0);
        pod.end([app]);
    }
}

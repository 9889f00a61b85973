//! `explain` reports the plan that the create then executes.

use std::fs;
use std::os::unix::fs::symlink;

use runcrust_tests::kata::KataEntry;
use runcrust_tests::kubelet::SubPath;
use runcrust_tests::node::utf8;
use runcrust_tests::{Bundle, Node, POD, StagedVolume, on_each_delegate};
use serde_json::{Value, json};

use crate::scene::{assert_created, explain, mount};

on_each_delegate! {
    fn a_bundle_without_volumes_is_passed_through(delegate: Delegate) {
        let node = Node::new(delegate);
        let mounted = node.target(POD, "pv-plain");
        fs::write(mounted.join("file"), "plain").unwrap();
        let bundle = Bundle::plain(node.dir()).bind(&mounted, "/data", &[]).write();
        let explained = explain(&node, &bundle);
        assert_eq!(explained["plan"], json!({"kind": "pass-on"}));
        assert_eq!(explained["role"]["kind"], "standalone");
        for key in ["refusals", "volumes"] {
            assert_eq!(explained[key], json!([]), "{explained:#}");
        }
        assert_eq!((&explained["diff"], &explained["rewrite"]), (&json!(""), &Value::Null));
        let data = mount(&explained, "/data");
        assert_eq!((&data["match"], &data["error"]), (&Value::Null, &Value::Null));
        let note = data["note"].as_str().unwrap();
        let missing = format!("there is no {}", node.entry(&mounted).display());
        assert!(note.contains(&missing), "{note}");
        assert_eq!(mount(&explained, "/proc")["note"], Value::Null);
        let before = bundle.config_bytes();
        let _ = node.run(&bundle);
        assert_eq!(bundle.config_bytes(), before);
    }

    fn a_pods_sandbox_and_containers_are_explained(delegate: Delegate) {
        let node = Node::new(delegate);
        // Both are in use by the sandbox until the end.
        let (device, later_device) = (node.ext4(), node.ext4());
        let staged = ["--fs-group", "2000", "--access-mode", "SINGLE_NODE_SINGLE_WRITER"];
        let target = node.stage(POD, "pv-1", &device, &staged);

        let (explained, sandbox) = assert_created(&node, &node.sandbox_bundle(POD).write());
        assert_eq!(
            explained["plan"],
            json!({"kind": "sandbox", "pod_uid": POD, "place": "/.crust"})
        );
        assert_eq!((&explained["role"]["kind"], &explained["role"]["pod_uid"]), (&json!("sandbox"), &json!(POD)));
        let kind = "io.kubernetes.cri.container-type";
        assert_eq!(explained["role"]["annotations"][kind], "sandbox");
        let volume = &explained["volumes"][0];
        let expected = json!({
            "volume": "pv-1", "target_path": utf8(&target), "layout": "crust",
            "device": utf8(device.path()), "device_number": device.number(), "fstype": "ext4",
            "options": [], "read_only": false, "fs_group": 2000,
            "fs_group_change_policy": "Always", "access_mode": "SINGLE_NODE_SINGLE_WRITER",
            "device_node": false, "access": "first", "users": [], "problem": null,
        });
        assert_eq!(*volume, expected);

        let bundle = node
            .app_bundle(&sandbox)
            .bind(&target, "/data", &[])
            .bind(target.join("db/main"), "/sub", &["rbind", "rprivate", "ro"]);
        let (explained, app) = assert_created(&node, &bundle.write());
        assert_eq!(
            explained["plan"],
            json!({"kind": "container", "mounted_in": "sandbox", "pod_uid": POD,
                "sandbox": sandbox.id(), "process": sandbox.pid(), "ids": null})
        );
        let expected = |by, subpath, read_only| json!({
            "volume": "pv-1", "target_path": utf8(&target), "by": by, "resolved": null,
            "subpath": subpath, "read_only": read_only, "maps_ids": false,
        });
        assert_eq!(mount(&explained, "/data")["match"], expected("exact", "", false));
        let mut parent = expected("parent", "db/main", true);
        parent["prefix"] = utf8(&target).into();
        assert_eq!(mount(&explained, "/sub")["match"], parent);
        assert_eq!(mount(&explained, "/proc")["match"], Value::Null);
        let volume = &explained["volumes"][0];
        assert_eq!(volume["access"], "mounted");
        let id = sandbox.id();
        let user = json!({"kind": "sandbox", "id": id, "sandbox": id, "pod_uid": POD, "pid": sandbox.pid()});
        assert_eq!(volume["users"], json!([user]));
        assert_eq!(app.sh("touch /data/file && ls /sub && cat /proc/mounts | grep -c ' /sub ext4 ro'"), "1");

        // A volume that the sandbox has not mounted yet, and that the create mounts.
        let later = node.stage(POD, "pv-2", &later_device, &["--read-only"]);
        let bundle = node.app_bundle(&sandbox).bind(&later, "/late", &[]).write();
        let (explained, _app) = assert_created(&node, &bundle);
        assert_eq!(explained["volumes"][0]["access"], "first");
        assert_eq!(explained["volumes"][0]["read_only"], true);
    }

    fn a_container_without_a_sandbox_is_explained(delegate: Delegate) {
        let volume = StagedVolume::with(delegate, &["--device-node"]);
        let bundle = || volume.plain_bundle();
        let (explained, _one) = assert_created(&volume, &bundle().write());
        assert_eq!(
            explained["plan"],
            json!({"kind": "container", "mounted_in": "container", "sandbox": null,
                "pod_uid": null, "ids": null})
        );
        assert_eq!(explained["volumes"][0]["device_node"], true);
        // Without a sandbox the target path names the pod.
        let (explained, _two) = assert_created(&volume, &bundle().write());
        assert_eq!(explained["volumes"][0]["access"], "joins");
    }

    fn a_container_in_a_user_namespace_is_explained(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle();
        let (explained, _app) = assert_created(&volume, &bundle.user_namespace(100_000, None).write());
        let ranges = json!([[0, 100_000, 65536]]);
        let expected = json!({"new": {"users": ranges, "groups": ranges}});
        assert_eq!(explained["plan"]["ids"], expected);
    }

    fn a_mount_by_a_hook_is_explained(delegate: Delegate) {
        let volume = StagedVolume::on(Node::with(delegate, "mount_mode = \"hook\""), &[]);
        let bundle = volume.plain_bundle().write();
        fs::create_dir_all(bundle.rootfs().join("data")).unwrap();
        let (explained, _app) = assert_created(&volume, &bundle);
        assert_eq!(explained["plan"]["mounted_in"], "hook");
        let removed = explained["rewrite"]["removed"].as_array().unwrap();
        assert_eq!(removed.len(), 1, "{explained:#}");
        let diff = explained["diff"].as_str().unwrap();
        let gone = format!("\n-      \"source\": {:?},", utf8(&volume.target));
        assert!(diff.contains(&gone), "{diff}");
    }

    fn a_stock_kubelets_bind_and_resolved_paths_are_explained(delegate: Delegate) {
        let node = Node::new(delegate);
        let _ = node.dir().subdir("srv/data");
        symlink("srv/data", node.handler().kubelet_dir()).unwrap();
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let subpath = SubPath {
            pod_uid: POD,
            volume: "pv-1",
            directory: &target,
            path: "db",
            index: 0,
        };
        let bind = subpath.bind(&node.handler().kubelet_dir());
        let real = target.canonicalize().unwrap();
        let bundle = node
            .app_bundle(&sandbox)
            .bind(&bind, "/bind", &[])
            .bind(&target, "/given", &[])
            .bind(&real, "/real", &[])
            .write();
        let (explained, _app) = assert_created(&node, &bundle);
        let found = |at: &str| mount(&explained, at)["match"].clone();
        assert_eq!((&found("/bind")["by"], &found("/bind")["subpath"]), (&json!("subpath-bind"), &json!("db")));
        for at in ["/bind", "/given", "/real"] {
            assert_eq!(found(at)["target_path"], utf8(&target), "{explained:#}");
        }
        assert_eq!(found("/given")["resolved"], Value::Null);
        // A source that leads to the target path only by another link.
        let link = node.dir().join("link");
        symlink(&real, &link).unwrap();
        let bundle = node.app_bundle(&sandbox).bind(&link, "/data", &[]).write();
        let (explained, _app) = assert_created(&node, &bundle);
        assert_eq!(mount(&explained, "/data")["match"]["resolved"], utf8(&real));
    }

    fn an_entry_in_katas_layout_is_explained(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let info = json!({"volume-type": "block", "device": device.path(), "fstype": "ext4"});
        let _entry = KataEntry::add(&target, &info);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let (explained, _app) = assert_created(&node, &bundle);
        assert_eq!(explained["volumes"][0]["layout"], "kata");
    }
}

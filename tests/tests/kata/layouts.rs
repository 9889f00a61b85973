//! Entries in the crust directory and in Kata's layout at the same time.

use std::fs;

use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::refusal;
use runcrust_tests::{POD, on_each_delegate};

use super::*;

on_each_delegate! {
    fn katas_layout_is_not_read_by_default(delegate: Delegate) {
        let staged = StagedNode::with(delegate, "", Value::Null);
        let StagedNode { node, device, target, entry } = &staged;
        let sandbox = node.sandbox(POD);
        assert_eq!(sandbox.sh("ls -d /.crust 2>/dev/null | wc -l"), "0");
        let bundle = node.app_bundle(&sandbox).bind(target, "/data", &[]).write();
        let unstaged = refusal::create_refused(node, &bundle).naming_volume("pv-1").containing(&["nothing is staged"]);
        let _ = unstaged.message();
        assert!(node.stats(target).failure().stderr.contains("NOT_FOUND"));
        let _ = node.unstage(target).success();
        assert!(entry.info().exists(), "runcrust removed Kata's entry");
        node.handler().reconfigure("unstaged = \"pass\"");
        let app = node.app(&sandbox, target, "/data");
        let _ = app.sh("echo host > /data/file");
        assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "host\n");
        assert!(device.is_free());
    }

    fn stage_writes_only_to_the_crust_directory(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let device = node.ext4();
        let target = node.target(POD, "pv-1");
        let katas = KataEntry::at(&target);
        let _ = node.stage(POD, "pv-1", &device, &[]);
        assert!(!katas.path().exists());
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo x > /data/file");
        assert!(!katas.path().exists());
    }

    /// A driver may stage every volume in both, because it does not know which runtime the pod will have.
    fn equal_entries_in_both_are_one_volume(delegate: Delegate) {
        let staged = StagedNode::new(delegate, json!({"fsGroup": "2000"}));
        let StagedNode { node, device, target, entry } = &staged;
        let _ = node.stage(POD, "pv-1", device, &["--fs-group", "2000"]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, target, "/data");
        assert_eq!(app.sh("stat -c %g /data"), "2000");
        assert!(node.entry(target).join("runcrust.json").exists());
        assert!(!entry.path().join("runcrust.json").exists());
        for container in [app, sandbox] {
            container.stop();
            let _ = container.delete().success();
        }
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(target).success();
        assert!(!entry.path().exists() && !node.entry(target).exists());
    }

    fn different_entries_in_both_are_refused(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let StagedNode { node, device, target, entry } = &staged;
        let other = node.ext4();
        let refused = node.try_stage(target, other.path(), &[]).failure();
        let katas = entry.info();
        assert!(refused.stderr.contains(katas.to_str().unwrap()), "{refused}");
        assert!(!node.entry(target).exists());
        let _ = node.stage(POD, "pv-1", device, &[]);
        let sandbox = node.sandbox(POD);
        entry.write(&info(&other).to_string());
        let crust = node.entry(target).join("mountInfo.json");
        let bundle = node.app_bundle(&sandbox).bind(target, "/data", &[]).write();
        let refused = refusal::create_refused(node, &bundle).naming_volume("pv-1");
        let _ = refused.containing(&[katas.to_str().unwrap(), crust.to_str().unwrap()]).message();
        assert!(other.is_free());
    }

    fn a_volume_in_use_from_katas_entry_cannot_be_staged(delegate: Delegate) {
        let staged = StagedNode::new(delegate, Value::Null);
        let StagedNode { node, device, target, .. } = &staged;
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, target, "/data");
        let refused = node.try_stage(target, device.path(), &[]).failure();
        assert!(refused.stderr.contains("in use by"), "{refused}");
        assert!(!node.entry(target).exists());
        assert_eq!(app.sh("echo x > /data/file; cat /data/file"), "x");
    }

    /// In Kata's layout the entry's name would exceed the limit of file names.
    fn a_long_target_path_works_in_the_crust_directory(delegate: Delegate) {
        let node = Node::with(delegate, "kata_layout = true");
        let device = node.ext4();
        let volume = format!("pv-{}", "x".repeat(180));
        let target = node.stage(POD, &volume, &device, &[]);
        // Kata's directory exists, so it is searched.
        let beside = KataEntry::add(&node.target("pod-b", "pv-1"), &info(&device));
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        let _ = app.sh("echo x > /data/file");
        let _ = node.stats(&target).success();
        assert!(beside.info().exists());
    }
}

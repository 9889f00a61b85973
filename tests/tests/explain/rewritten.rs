//! Bundles whose config an earlier create has rewritten, also while their container runs.

use std::fs;

use runcrust_tests::bundle::without_empty;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Node, POD, StagedVolume, on_each_delegate};
use serde_json::{Value, json};

use crate::scene::{assert_created, assert_refused, explain};

/// The keys that are the same for a rewritten config. `diff` differs, because empty arrays that the rewrite added stay.
const SAME_KEYS: [&str; 5] = ["role", "mounts", "plan", "refusals", "rewrite"];

on_each_delegate! {
    fn a_running_containers_bundle_is_explained_as_before(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD).write();
        let (before, sandbox) = assert_created(&volume, &bundle);
        let explained = explain(&volume, &bundle);
        assert_eq!((&before["rewritten"], &explained["rewritten"]), (&json!(false), &json!(true)));
        for key in SAME_KEYS {
            assert_eq!(explained[key], before[key], "{key}");
        }
        let bundle = volume.app_bundle(&sandbox).write();
        let (before, app) = assert_created(&volume, &bundle);
        let explained = explain(&volume, &bundle);
        assert_eq!(explained["rewritten"], true);
        for key in SAME_KEYS {
            assert_eq!(explained[key], before[key], "{key}");
        }
        app.end();
        let explained = explain(&volume, &bundle);
        assert_eq!((&explained["rewritten"], &explained["refusals"]), (&json!(true), &json!([])));
    }

    fn a_bundle_whose_volume_is_unstaged_is_restored(delegate: Delegate) {
        let node = Node::with(delegate, "unstaged = \"pass\"");
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let original = bundle.config_bytes();
        let (_, app) = assert_created(&node, &bundle);
        app.end();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&target).success();
        let explained = explain(&node, &bundle);
        assert_eq!((&explained["refusals"], &explained["plan"]), (&json!([]), &json!({"kind": "pass-on"})));
        let back = format!("\n+      \"source\": {target:?},");
        assert!(explained["diff"].as_str().unwrap().contains(&back), "{explained:#}");
        let _again = node.run(&bundle);
        assert_eq!(without_empty(&bundle.config_bytes()), without_empty(&original));
    }

    fn a_rewritten_bundle_without_its_record_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let (_, app) = assert_created(&volume, &bundle);
        app.end();
        for record in fs::read_dir(volume.handler().state_dir().join("bundles")).unwrap() {
            fs::remove_file(record.unwrap().path()).unwrap();
        }
        let _ = fs::remove_file(bundle.path().join("init.pid"));
        let _ = fs::remove_file(bundle.path().join("log.json"));
        let (explained, sentence) = assert_refused(&volume, &bundle);
        assert!(sentence.contains("but the record of that create is missing"), "{sentence}");
        assert_eq!((&explained["rewritten"], &explained["plan"]), (&json!(true), &Value::Null));
    }
}

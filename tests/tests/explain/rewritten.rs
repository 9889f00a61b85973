//! Bundles that an earlier create has rewritten, be it that their container lives.

use std::fs;

use runcrust_tests::bundle::without_empty;
use runcrust_tests::node::WAIT_TIMEOUT;
use runcrust_tests::{Bundle, Node, POD, StagedVolume, on_each_delegate};
use serde_json::{Value, json};

use crate::scene::{assert_created, assert_refused, explain};

/// The difference isn't the same: arrays that were made stay, empty.
const TOLD: [&str; 5] = ["role", "mounts", "plan", "refusals", "rewrite"];

on_each_delegate! {
    fn a_live_containers_bundle_is_explained_as_it_was(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.sandbox_bundle(POD).write();
        let (before, sandbox) = assert_created(&volume, &bundle);
        let told = explain(&volume, &bundle);
        assert_eq!((&before["rewritten"], &told["rewritten"]), (&json!(false), &json!(true)));
        for key in TOLD {
            assert_eq!(told[key], before[key], "{key}");
        }
        let bundle = volume.app_bundle(&sandbox).write();
        let (before, app) = assert_created(&volume, &bundle);
        let told = explain(&volume, &bundle);
        assert_eq!(told["rewritten"], true);
        for key in TOLD {
            assert_eq!(told[key], before[key], "{key}");
        }
        app.end();
        let told = explain(&volume, &bundle);
        assert_eq!((&told["rewritten"], &told["refusals"]), (&json!(true), &json!([])));
    }

    fn one_whose_volume_is_gone_is_brought_back(delegate: Delegate) {
        let node = Node::with(delegate, "unstaged = \"pass\"");
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let bundle = Bundle::plain(node.dir()).bind(&target, "/data", &[]).write();
        let original = bundle.config_bytes();
        let (_, app) = assert_created(&node, &bundle);
        app.end();
        device.wait_until_free(WAIT_TIMEOUT);
        let _ = node.unstage(&target).success();
        let told = explain(&node, &bundle);
        assert_eq!((&told["refusals"], &told["plan"]), (&json!([]), &json!({"kind": "pass-on"})));
        let back = format!("\n+      \"source\": {target:?},");
        assert!(told["diff"].as_str().unwrap().contains(&back), "{told:#}");
        let _again = node.run(&bundle);
        assert_eq!(without_empty(&bundle.config_bytes()), without_empty(&original));
    }

    fn one_without_its_record_is_refused(delegate: Delegate) {
        let volume = StagedVolume::new(delegate);
        let bundle = volume.plain_bundle().write();
        let (_, app) = assert_created(&volume, &bundle);
        app.end();
        for record in fs::read_dir(volume.handler().state_dir().join("bundles")).unwrap() {
            fs::remove_file(record.unwrap().path()).unwrap();
        }
        let _ = fs::remove_file(bundle.path().join("init.pid"));
        let _ = fs::remove_file(bundle.path().join("log.json"));
        let (told, sentence) = assert_refused(&volume, &bundle);
        assert!(sentence.contains("but the record of that create is missing"), "{sentence}");
        assert_eq!((&told["rewritten"], &told["plan"]), (&json!(true), &Value::Null));
    }
}

//! `uninstall` while the handler is needed, or while that is unknown.

use std::fs;

use runcrust_tests::node::utf8;
use runcrust_tests::{Delegate, Node, Pod, Run};

use crate::scene::run;

const UID: &str = "eeeeeeee-1111-2222-3333-444444444444";

fn install(node: &Node) -> impl Fn(&[&str]) -> Run {
    let file = node.dir().join("config.toml");
    let program = node.handler().path().to_owned();
    fs::write(&file, "version = 2\n").unwrap();
    let call = move |words: &[&str]| {
        let all = [
            &words[..1],
            &["containerd", "--config", utf8(&file)],
            &words[1..],
        ]
        .concat();
        run(&program, &all)
    };
    let _ = call(&["install"]).success();
    call
}

#[test]
fn live_sandboxes_and_volumes_in_use_stop_uninstall() {
    let node = Node::root_only(Delegate::Runc, "sandbox = \"always\"");
    let device = node.ext4();
    let call = install(&node);
    let empty = node.sandbox("pod-without");
    let refused = call(&["uninstall"]).failure();
    assert_eq!(refused.status.code(), Some(1));
    let sentence = format!("sandbox {} of pod pod-without is alive", empty.id());
    assert!(refused.stderr.contains(&sentence), "{refused}");
    empty.end();

    let pod = Pod::new(&node, UID, &device, &[]);
    let app = pod.app();
    let preview = call(&["uninstall", "--dry-run"]).failure();
    assert!(preview.stdout.contains("-[plugins."), "{preview}");
    preview.assert_contains(&[
        "volume pv-1",
        UID,
        app.id(),
        pod.sandbox.id(),
        "kubectl drain",
    ]);
    pod.end([app]);
    let _ = call(&["uninstall", "--dry-run"]).success();
    let _ = call(&["uninstall"]).success();
}

#[test]
fn unreadable_records_and_configurations_stop_uninstall() {
    let node = Node::root_only(Delegate::Runc, "");
    let device = node.ext4();
    let target = node.stage(UID, "pv-1", &device, &[]);
    let call = install(&node);
    let entry = node.entry(&target);
    let sandboxes = node.handler().state_dir().join("sandboxes");
    fs::create_dir_all(&sandboxes).unwrap();
    for record in [entry.join("runcrust.json"), sandboxes.join("abc.json")] {
        fs::write(&record, "{").unwrap();
        let refused = call(&["uninstall"]).failure();
        assert!(refused.stderr.contains(utf8(&record)), "{refused}");
        fs::remove_file(record).unwrap();
    }
    node.handler().reconfigure("no_such_key = 1");
    let refused = call(&["uninstall"]).failure();
    assert!(refused.stderr.contains("no_such_key"), "{refused}");
    node.handler().reconfigure("");
    // A volume that is staged but not in use does not need the handler.
    let _ = call(&["uninstall"]).success();
}

//! Directories that outlive the node's boot: of what is in them nobody lives.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::container::vanish;
use runcrust_tests::{Node, on_each_delegate};
use serde_json::Value;

use crate::{OTHER_POD, POD, answer, assert_collected, next_works};

/// Records as an earlier boot left them, whose processes seem to live: their pids and start times are
/// this one's.
fn boot(node: &Node) {
    let own = start_time();
    for file in node.records() {
        let file = node.dir().join(file);
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        earlier(&mut record, own);
        fs::write(&file, record.to_string()).unwrap();
    }
}

fn earlier(value: &mut Value, own: u64) {
    match value {
        Value::Object(object) => {
            let is_process = object.contains_key("startTime");
            for (key, value) in object {
                match key.as_str() {
                    "bootId" => *value = "00000000-0000-4000-8000-000000000000".into(),
                    "pid" if is_process => *value = std::process::id().into(),
                    "startTime" => *value = own.into(),
                    _ => earlier(value, own),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| earlier(value, own)),
        _ => {}
    }
}

/// Field 22 of `proc_pid_stat(5)`.
fn start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(19).unwrap().parse().unwrap()
}

fn owners(node: &Node) -> PathBuf {
    node.handler().state_dir().join("owners")
}

on_each_delegate! {
    fn leaves_what_is_staged_and_nobody_who_has_it(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        vanish(&[&app, &sandbox]);
        boot(&node);
        let volumes = answer(&node, &["list", "--json"]);
        assert_eq!(volumes["volumes"][0]["state"], "staged", "{volumes}");
        assert_collected(&node, &["bundle", "owner", "record", "sandbox", "user"]);
        assert_eq!(fs::read_dir(owners(&node)).unwrap().count(), 0);
        next_works(&node, POD, &target);
        let others = node.stage(OTHER_POD, "pv-1", &device, &[]);
        next_works(&node, OTHER_POD, &others);
        node.put_away(&[&target, &others]);
    }

    /// The number of a device is another's after the next boot.
    fn without_gc_nobody_is_kept_from_a_device_either(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        next_works(&node, POD, &target);
        boot(&node);
        // Now the volume is on the other one, and that on this one.
        let list = |number: &str| owners(&node).join(format!("{number}.json"));
        fs::rename(list(device.number()), list(other.number())).unwrap();
        let second = node.stage(OTHER_POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        next_works(&node, OTHER_POD, &second);
        assert_collected(&node, &["bundle"]);
        runcrust_tests::container::end([app, sandbox]);
        node.put_away(&[&target, &second]);
    }

    fn and_with_the_pods_their_volumes(delegate: Delegate) {
        let node = Node::new(delegate);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        vanish(&[&app, &sandbox]);
        boot(&node);
        fs::remove_dir_all(crate::pod_directory(&node, POD)).unwrap();
        assert_collected(&node, &["bundle", "owner", "sandbox", "user", "volume"]);
        node.assert_nothing_left();
    }
}

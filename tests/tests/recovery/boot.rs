//! Directories that outlive the node's boot: of what is in them nobody lives.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::container::kill_and_remove_bundles;
use runcrust_tests::gc::collect;
use runcrust_tests::{Node, POD, StagedVolume, on_each_delegate};
use serde_json::Value;

use crate::{OTHER_POD, answer, assert_collected, kinds, next_works};

/// Where a node's bundles are.
#[derive(PartialEq)]
enum Bundles {
    /// Below `/run`, as containerd's.
    InMemory,
    /// As podman's.
    OnDisk,
}

/// Records as an earlier boot left them, whose processes seem to live: their pids and start times are
/// this one's.
fn boot(node: &Node, bundles: &Bundles) {
    let own = start_time();
    for file in node.records() {
        let file = node.dir().join(file);
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        earlier(&mut record, own);
        if let Some(place) = record.get_mut("place") {
            place["volatile"] = (*bundles == Bundles::InMemory).into();
        }
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
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        kill_and_remove_bundles(&[&app, &sandbox]);
        boot(&volume, &Bundles::InMemory);
        let volumes = answer(&volume, &["list", "--json"]);
        assert_eq!(volumes["volumes"][0]["state"], "staged", "{volumes}");
        assert_collected(&volume, &["bundle", "owner", "record", "sandbox", "user"]);
        assert_eq!(fs::read_dir(owners(&volume)).unwrap().count(), 0);
        next_works(&volume, POD, &volume.target);
        let others = volume.node.stage(OTHER_POD, "pv-1", &volume.device, &[]);
        next_works(&volume, OTHER_POD, &others);
        volume.node.unstage_all(&[&volume.target, &others]);
    }

    /// The number of a device is another's after the next boot.
    fn without_gc_nobody_is_kept_from_a_device_either(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        next_works(&node, POD, &target);
        boot(&node, &Bundles::InMemory);
        // Now the volume is on the other one, and that on this one.
        let list = |number: &str| owners(&node).join(format!("{number}.json"));
        fs::rename(list(device.number()), list(other.number())).unwrap();
        let second = node.stage(OTHER_POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        next_works(&node, OTHER_POD, &second);
        assert_collected(&node, &["bundle"]);
        runcrust_tests::container::end([app, sandbox]);
        node.unstage_all(&[&target, &second]);
    }

    /// kubelet's file system may not be mounted yet, and its number be another's.
    fn what_is_gone_is_so_for_sure_once_it_was_there_in_this_boot(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        kill_and_remove_bundles(&[&app, &sandbox]);
        boot(&volume, &Bundles::OnDisk);
        let directory = crate::pod_directory(&volume, POD);
        fs::remove_dir_all(&directory).unwrap();
        let said = collect(&volume);
        assert_eq!(kinds(&said.removed), ["owner", "record", "sandbox", "user"], "{said:?}");
        assert_eq!(kinds(&said.left), ["bundle", "volume"], "{said:?}");
        for left in &said.left {
            let why = left["why"].as_str().unwrap();
            assert!(why.contains("earlier boot of the node") && why.contains("hint: "), "{why}");
        }
        let bundles = volume.handler().state_dir().join("bundles");
        for record in fs::read_dir(bundles).unwrap() {
            let record = record.unwrap();
            let named = format!("remove bundles/{}", record.file_name().display());
            assert!(said.left.iter().any(|it| it["why"].as_str().unwrap().contains(&named)), "{said:?}");
            fs::remove_file(record.path()).unwrap();
        }
        fs::create_dir_all(&volume.target).unwrap();
        next_works(&volume, POD, &volume.target);
        fs::remove_dir_all(&directory).unwrap();
        assert_collected(&volume, &["bundle", "owner", "volume"]);
        volume.assert_nothing_left();
    }
}

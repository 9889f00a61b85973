//! Records that outlive a reboot: the processes that they name do not exist any more.

use std::fs;
use std::path::PathBuf;

use runcrust_tests::container::kill_and_remove_bundles;
use runcrust_tests::gc::collect;
use runcrust_tests::{Node, POD, StagedVolume, on_each_delegate};
use serde_json::Value;

use crate::{OTHER_POD, answer, assert_collected, assert_next_pod_works, kinds};

/// The location of a node's bundles.
#[derive(PartialEq)]
enum Bundles {
    /// The bundles are below `/run`, like containerd's.
    InMemory,
    /// The bundles are on disk, like podman's.
    OnDisk,
}

/// Makes the records look as if an earlier boot had left them. Their pids and start times are those of the test's own
/// process, so that only the boot id shows that they are stale.
fn simulate_reboot(node: &Node, bundles: &Bundles) {
    let start_time = own_start_time();
    for file in node.records() {
        let file = node.dir().join(file);
        if file.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let mut record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        set_earlier_boot(&mut record, start_time);
        if let Some(place) = record.get_mut("place") {
            place["volatile"] = (*bundles == Bundles::InMemory).into();
        }
        fs::write(&file, record.to_string()).unwrap();
    }
}

fn set_earlier_boot(value: &mut Value, start_time: u64) {
    match value {
        Value::Object(object) => {
            let is_process = object.contains_key("startTime");
            for (key, value) in object {
                match key.as_str() {
                    "bootId" => *value = "00000000-0000-4000-8000-000000000000".into(),
                    "pid" if is_process => *value = std::process::id().into(),
                    "startTime" => *value = start_time.into(),
                    _ => set_earlier_boot(value, start_time),
                }
            }
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|value| set_earlier_boot(value, start_time)),
        _ => {}
    }
}

/// Returns the start time of this process: field 22 of `proc_pid_stat(5)`.
fn own_start_time() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(19).unwrap().parse().unwrap()
}

fn owners(node: &Node) -> PathBuf {
    node.handler().state_dir().join("owners")
}

on_each_delegate! {
    fn after_a_reboot_volumes_are_staged_and_unused(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        kill_and_remove_bundles(&[&app, &sandbox]);
        simulate_reboot(&volume, &Bundles::InMemory);
        let volumes = answer(&volume, &["list", "--json"]);
        assert_eq!(volumes["volumes"][0]["state"], "staged", "{volumes}");
        assert_collected(&volume, &["bundle", "owner", "record", "sandbox", "user"]);
        assert_eq!(fs::read_dir(owners(&volume)).unwrap().count(), 0);
        assert_next_pod_works(&volume, POD, &volume.target);
        let others = volume.node.stage(OTHER_POD, "pv-1", &volume.device, &[]);
        assert_next_pod_works(&volume, OTHER_POD, &others);
        volume.node.unstage_all(&[&volume.target, &others]);
    }

    /// After a reboot a device's number may belong to another device.
    fn stale_owners_of_a_device_number_block_no_pod(delegate: Delegate) {
        let node = Node::new(delegate);
        let (device, other) = (node.ext4(), node.ext4());
        let target = node.stage(POD, "pv-1", &device, &[]);
        assert_next_pod_works(&node, POD, &target);
        simulate_reboot(&node, &Bundles::InMemory);
        // The list with the first device's number now belongs to the second device.
        let list = |number: &str| owners(&node).join(format!("{number}.json"));
        fs::rename(list(device.number()), list(other.number())).unwrap();
        let second = node.stage(OTHER_POD, "pv-2", &other, &[]);
        let sandbox = node.sandbox(POD);
        let app = node.app(&sandbox, &target, "/data");
        assert_next_pod_works(&node, OTHER_POD, &second);
        assert_collected(&node, &["bundle"]);
        runcrust_tests::container::end([app, sandbox]);
        node.unstage_all(&[&target, &second]);
    }

    /// kubelet's file system may not be mounted yet, so only what was seen in this boot counts as gone.
    fn after_a_reboot_missing_bundles_are_unknown(delegate: Delegate) {
        let (volume, sandbox) = StagedVolume::with_sandbox(delegate);
        let app = volume.app(&sandbox);
        kill_and_remove_bundles(&[&app, &sandbox]);
        simulate_reboot(&volume, &Bundles::OnDisk);
        let directory = crate::pod_directory(&volume, POD);
        fs::remove_dir_all(&directory).unwrap();
        let report = collect(&volume);
        assert_eq!(kinds(&report.removed), ["owner", "record", "sandbox", "user"], "{report:?}");
        assert_eq!(kinds(&report.left), ["bundle", "volume"], "{report:?}");
        for left in &report.left {
            let why = left["why"].as_str().unwrap();
            assert!(why.contains("earlier boot of the node") && why.contains("hint: "), "{why}");
        }
        let bundles = volume.handler().state_dir().join("bundles");
        for record in fs::read_dir(bundles).unwrap() {
            let record = record.unwrap();
            let named = format!("remove bundles/{}", record.file_name().display());
            assert!(report.left.iter().any(|it| it["why"].as_str().unwrap().contains(&named)), "{report:?}");
            fs::remove_file(record.path()).unwrap();
        }
        fs::create_dir_all(&volume.target).unwrap();
        assert_next_pod_works(&volume, POD, &volume.target);
        fs::remove_dir_all(&directory).unwrap();
        assert_collected(&volume, &["bundle", "owner", "volume"]);
        volume.assert_nothing_left();
    }
}

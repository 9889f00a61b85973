//! Compares the bundles of the harness with those that containerd writes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use runcrust_tests::{Bundle, Container, Containerd, Delegate, Runtime, TestDir};
use serde_json::Value;

/// The paths that differ on purpose. The harness's pods have their own network (without CNI), while
/// containerd's test pods use the node's. Images have other environments. The version is that of the
/// specification that containerd was built with.
const DIFFERENT: [&str; 3] = ["/process/env", "/linux/cgroupsPath", "/ociVersion"];

/// Values that containerd 1.7 writes and 1.6 does not.
const NEWER: [&str; 7] = [
    "/mounts/[bind /dev/shm]/options/[] = nosuid",
    "/mounts/[bind /dev/shm]/options/[] = nodev",
    "/mounts/[bind /dev/shm]/options/[] = noexec",
    "/mounts/[bind /etc/resolv.conf]/options/[] = nosuid",
    "/mounts/[bind /etc/resolv.conf]/options/[] = nodev",
    "/mounts/[bind /etc/resolv.conf]/options/[] = noexec",
    "/linux/maskedPaths/[] = /sys/devices/virtual/powercap",
];

#[test]
fn the_harness_bundles_match_containerds() {
    let dir = TestDir::new();
    let runtime = Runtime::bare(Delegate::Runc);
    let containerd = Containerd::start(&dir, &[("plain", &runtime)]);
    let data = dir.subdir("data");
    let pod = containerd.pod("uid-1");
    let sandbox = containerd.cri().run_pod(&pod, "plain").unwrap();
    let config = containerd
        .app("app-1")
        .mount(&data, "/data")
        .mount_readonly(&data, "/data/ro");
    let app = containerd.cri().run(&sandbox, &config, &pod).unwrap();
    let theirs = |id: &str| -> Value {
        serde_json::from_slice(&fs::read(containerd.bundle(id).join("config.json")).unwrap())
            .unwrap()
    };

    let our_sandbox = Bundle::sandbox(&dir, "uid-1").write();
    compare(&theirs(&sandbox), &our_sandbox.config());
    let running = Container::running(&runtime, &our_sandbox);
    let our_app = Bundle::app_in(&dir, &running)
        .bind(&data, "/data", &[])
        .bind(&data, "/data/ro", &["rbind", "rprivate", "ro"]);
    compare(&theirs(&app), our_app.spec());
}

/// Asserts that our config has everything that containerd's has, in the same order of keys.
#[track_caller]
fn compare(theirs: &Value, ours: &Value) {
    let (theirs, ours) = (facts(theirs), facts(ours));
    let missing: Vec<&String> = theirs
        .iter()
        .filter(|fact| !ours.contains(fact) && !NEWER.contains(&fact.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "only in containerd's config: {missing:#?}"
    );
    // Only the keys that both configs have are compared for their order.
    let theirs_known: BTreeSet<&String> = theirs.iter().collect();
    let ours: Vec<&String> = ours
        .iter()
        .filter(|fact| theirs_known.contains(fact))
        .collect();
    let keys = |facts: Vec<&String>| -> Vec<String> {
        let mut keys: Vec<String> = facts
            .iter()
            .filter_map(|fact| Some(fact.split('/').nth(1)?.to_owned()))
            .collect();
        keys.dedup();
        keys
    };
    assert_eq!(keys(theirs.iter().collect()), keys(ours));
}

/// Returns each leaf with its path. Unique values (paths, ids, pids) are masked, and an element of an
/// array is identified by its type and destination.
fn facts(config: &Value) -> Vec<String> {
    let mut facts = Vec::new();
    collect(config, "", &mut facts);
    facts.retain(|fact| !DIFFERENT.iter().any(|path| fact.starts_with(path)));
    facts
}

fn collect(value: &Value, path: &str, facts: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                collect(member, &format!("{path}/{key}"), facts);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                let name = |key: &str| element[key].as_str().unwrap_or_default().to_owned();
                let named = if element.is_object() {
                    name("type") + " " + &name("destination")
                } else {
                    String::new()
                };
                collect(element, &format!("{path}/[{}]", named.trim()), facts);
            }
        }
        Value::String(text) => facts.push(format!("{path} = {}", mask(path, text))),
        other => facts.push(format!("{path} = {other}")),
    }
}

fn mask<'a>(path: &str, text: &'a str) -> &'a str {
    let namespace = text
        .strip_prefix("/proc/")
        .and_then(|rest| rest.split_once("/ns/"));
    match namespace {
        Some((_, kind)) => kind,
        None if path.ends_with("sandbox-id") || path.ends_with("log-directory") => "its own",
        None if Path::new(text).starts_with(std::env::temp_dir()) => "below the test's directory",
        None => text,
    }
}

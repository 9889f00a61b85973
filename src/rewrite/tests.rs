use std::path::{Path, PathBuf};

use crust_state::bundle::{BundleRecord, Containers};
use crust_state::config::MountMode;
use crust_state::record::Version;
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, DelegateKind, Process, TargetPath};
use crust_volume::VolumeProperties;

use rustix::mount::MountAttrFlags;

use super::*;
use crate::matching::{Match, MatchedBy};
use crate::oci::Document;
use crate::plan::{ContainerPlan, MountedIn, PlannedMount, SandboxPlan, VolumeOwner};

const TARGET: &str = "/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";

fn hooks() -> Hooks {
    let (program, cli) = (
        "/usr/bin/crust-mount-hook".into(),
        "/usr/bin/runcrust".into(),
    );
    Hooks {
        program,
        cli,
        config: Some("/etc/runcrust/crust.toml".into()),
        delegate: DelegateKind::Runc,
    }
}

fn target() -> TargetPath {
    TargetPath::new(TARGET).unwrap()
}

fn container_plan(mount_mode: MountMode) -> ContainerPlan {
    let process = Process {
        pid: 100,
        start_time: 1,
        boot_id: String::new(),
        pid_namespace: None,
    };
    let (id, pod_uid) = ("s".to_owned(), "uid-1".to_owned());
    let mount = PlannedMount {
        index: 1,
        destination: "/data".into(),
        source: TARGET.into(),
        found: Match {
            volume: target(),
            subpath: PathBuf::new(),
            by: MatchedBy::Exact,
            read_only: false,
            resolved: None,
        },
        read_only: true,
        maps_ids: false,
        options: vec!["rbind".into(), "ro".into()],
    };
    let record = SandboxRecord {
        version: Version,
        id,
        pod_uid,
        process,
        mount_label: None,
        failures: vec![],
    };
    ContainerPlan {
        mounted_in: match mount_mode {
            MountMode::Bind => MountedIn::Sandbox(record),
            MountMode::Hook => MountedIn::Hook(VolumeOwner::default()),
        },
        ids: None,
        label: None,
        mounts: vec![mount],
    }
}

fn with_device(device: &str, read_only: bool) -> (TargetPath, VolumeProperties) {
    (
        target(),
        VolumeProperties {
            device: Some(device.parse().unwrap()),
            read_only,
            device_node: false,
            attributes: MountAttrFlags::empty(),
        },
    )
}

fn sandbox_plan() -> SandboxPlan {
    SandboxPlan {
        pod_uid: "uid-1".into(),
        directory: "/.crust",
        volumes: vec![target()],
        label: None,
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Returns the rewritten text, and the record to restore the old one.
fn apply_rewrite(document: &Document<'_>, rewrite: Rewrite) -> (String, BundleRecord) {
    let bundle = RewrittenBundle {
        config: "/b/config.json".into(),
        containers: vec!["a".to_owned()],
    };
    let (bytes, record) = rewrite.apply(document, bundle).unwrap();
    (text(bytes), record)
}

fn rewrite_app(document: &Document<'_>) -> (String, BundleRecord) {
    rewrite_container(document, MountMode::Bind, &[with_device("7:3", true)])
}

fn rewrite_container(
    document: &Document<'_>,
    mount_mode: MountMode,
    properties: &[(TargetPath, VolumeProperties)],
) -> (String, BundleRecord) {
    let volumes = ContainerVolumes {
        properties,
        rootfs: Path::new("/b/rootfs"),
    };
    let plan = container_plan(mount_mode);
    let rewrite = container(document, &plan, volumes, &Config::default(), &hooks());
    apply_rewrite(document, rewrite.unwrap())
}

fn apply_undo(rewritten: &str, record: &BundleRecord) -> String {
    let document = Document::parse(rewritten.as_bytes()).unwrap();
    let edits = undo(&document, record, &Config::default()).unwrap();
    text(document.apply(&edits).unwrap())
}

const APP: &str = r#"{ "x":1e2, "mounts":[{"destination":"/p"},
  {"destination":"/data", "source":"\/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount", "options":["rbind","ro"]}],
 "hooks":{"createRuntime":[{"path":"/theirs"}],"poststop":[]}}"#;

#[test]
fn only_source_and_hooks_of_an_app_containers_config_change() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    let config = "--config\",\"/etc/runcrust/crust.toml\",\"--volume\",\"";
    let hook = |verb: &str, timeout: u32| {
        format!(
            r#"{{"path":"/usr/bin/crust-mount-hook","args":["crust-mount-hook","{verb}","{config}{TARGET}"],"timeout":{timeout}}}"#
        )
    };
    let expected = APP
        .replace(
            "\"\\/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount\"",
            "\"/run/runcrust/attach/1\"",
        )
        .replace(
            "{\"path\":\"/theirs\"}",
            &format!("{{\"path\":\"/theirs\"}},{}", hook("publish", 30)),
        )
        .replace(
            "\"poststop\":[]",
            &format!("\"poststop\":[{}]", hook("release", 30)),
        );
    let (text, record) = rewrite_app(&document);
    assert_eq!(text, expected);
    assert_eq!(apply_undo(&text, &record), APP, "byte for byte");
}

#[test]
fn a_sandboxs_config_gets_a_tmpfs_and_hooks_but_no_devices() {
    let config = r#"{"mounts":[],"linux":{"devices":[],"resources":{"devices":[]}},"hooks":{"createRuntime":[],"poststop":[]}}"#;
    let document = Document::parse(config.as_bytes()).unwrap();
    let rootfs = Path::new("/b/rootfs");
    let rewrite = sandbox(rootfs, &sandbox_plan(), &hooks()).unwrap();
    let (text, record) = apply_rewrite(&document, rewrite);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["mounts"][0]["destination"], "/.crust");
    assert_eq!(value["mounts"][0]["options"][3], "mode=0700");
    let unchanged: serde_json::Value = serde_json::from_str(config).unwrap();
    assert_eq!(value["linux"], unchanged["linux"]);
    let arguments = value["hooks"]["createRuntime"][0]["args"].to_string();
    assert!(
        arguments
            .contains(r#""--pod-uid","uid-1","--cli","/usr/bin/runcrust","--rootfs","/b/rootfs""#)
    );
    assert_eq!(apply_undo(&text, &record), config, "byte for byte");
}

/// Rewrites `APP` with `given` instead of the volume's mount options. Returns the rewritten text, after checking
/// that an undo restores every byte.
fn rewritten_mount(given: &str, attributes: MountAttrFlags, is_volume_read_only: bool) -> String {
    let app = APP.replace(r#""options":["rbind","ro"]"#, given);
    let document = Document::parse(app.as_bytes()).unwrap();
    let mut plan = container_plan(MountMode::Bind);
    let options = document.mounts().unwrap()[1].options.clone();
    plan.mounts[0].options = options.iter().map(ToString::to_string).collect();
    plan.mounts[0].read_only = options.iter().any(|option| option == "ro");
    let (volume, properties) = with_device("7:3", is_volume_read_only);
    let properties = [(
        volume,
        VolumeProperties {
            attributes,
            ..properties
        },
    )];
    let volumes = ContainerVolumes {
        properties: &properties,
        rootfs: Path::new("/b/rootfs"),
    };
    let rewrite = container(&document, &plan, volumes, &Config::default(), &hooks());
    let (text, record) = apply_rewrite(&document, rewrite.unwrap());
    assert_eq!(apply_undo(&text, &record), app, "byte for byte");
    text
}

#[test]
fn added_options_follow_the_mounts_own_and_can_be_undone() {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let none = MountAttrFlags::empty();
    for (attributes, is_volume_read_only, given, expected) in [
        (
            attributes,
            false,
            r#""options":["rbind","ro"]"#,
            r#""options":["rbind","ro","nosuid","nodev"]"#,
        ),
        (
            attributes,
            false,
            r#""options" : [ "rbind", "suid" ]"#,
            r#""options" : [ "rbind", "suid","nodev" ]"#,
        ),
        (
            attributes,
            false,
            r#""options":[ ]"#,
            r#""options":["nosuid","nodev" ]"#,
        ),
        (
            attributes,
            false,
            r#""options":null"#,
            r#""options":["nosuid","nodev"]"#,
        ),
        (
            attributes,
            false,
            r#""type":"bind""#,
            r#""type":"bind","options":["nosuid","nodev"]"#,
        ),
        (
            attributes,
            false,
            r#""options":["nodev","rnosuid"]"#,
            r#""options":["nodev","rnosuid"]"#,
        ),
        // A mount with `rw` clears the source's `ro`; with some delegates a mount without it does, too.
        (
            none,
            true,
            r#""options":["rbind","rw"]"#,
            r#""options":["rbind","rw","ro"]"#,
        ),
        (
            none,
            true,
            r#""options":["rbind","rrw"]"#,
            r#""options":["rbind","rrw","ro","rro"]"#,
        ),
        (
            none,
            true,
            r#""options":["rbind","ro"]"#,
            r#""options":["rbind","ro"]"#,
        ),
        (
            none,
            true,
            r#""type":"bind""#,
            r#""type":"bind","options":["ro"]"#,
        ),
        (
            attributes,
            true,
            r#""options":["rw"]"#,
            r#""options":["rw","nosuid","nodev","ro"]"#,
        ),
        (none, false, r#""options":["rw"]"#, r#""options":["rw"]"#),
    ] {
        let text = rewritten_mount(given, attributes, is_volume_read_only);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// A config that was copied from a rewritten one already has the hooks.
#[test]
fn an_undo_removes_the_added_one_of_equal_elements() {
    let once = rewrite_app(&Document::parse(APP.as_bytes()).unwrap()).0;
    let source = "/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";
    let copied = once.replace("/run/runcrust/attach/1", source);
    let copied = copied.replace("\"poststop\":[{", "\"poststop\":[ { ");
    let (text, record) = rewrite_app(&Document::parse(copied.as_bytes()).unwrap());
    assert_eq!(apply_undo(&text, &record), copied, "byte for byte");
}

#[test]
fn a_second_rewrite_after_an_undo_gives_the_same_text() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    let (once, record) = rewrite_app(&document);
    let restored = apply_undo(&once, &record);
    let document = Document::parse(restored.as_bytes()).unwrap();
    assert_eq!(rewrite_app(&document).0, once);
}

#[test]
fn an_attached_source_without_its_record_is_refused() {
    let config = r#"{"mounts":[{"destination":"/data","source":"/run/runcrust/attach/0"}]}"#;
    let document = Document::parse(config.as_bytes()).unwrap();
    assert!(is_rewritten(&document, false, &Config::default()));
    let record = BundleRecord {
        version: Version,
        config: "/b/config.json".into(),
        containers: Containers::default(),
        sources: vec![],
        added: vec![],
        removed: vec![],
        location: None,
        has_renamed_keys: false,
    };
    let error = undo(&document, &record, &Config::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mount /data: its source /run/runcrust/attach/0")
            && error.contains("hint: "),
        "{error}"
    );
}

#[test]
fn a_crust_mount_marks_only_a_sandboxs_config_as_rewritten() {
    let config = r#"{"mounts":[{"destination":"/.crust","type":"tmpfs"}]}"#;
    let document = Document::parse(config.as_bytes()).unwrap();
    assert!(is_rewritten(&document, true, &Config::default()));
    assert!(!is_rewritten(&document, false, &Config::default()));
}

#[test]
fn a_volume_with_a_device_node_adds_its_device() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    // The mount is read-only, the volume isn't.
    let (volume, mut properties) = with_device("7:3", false);
    properties.device_node = true;
    let (text, record) = rewrite_container(&document, MountMode::Bind, &[(volume, properties)]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let path = format!("/dev/crust/{}", target().digest().short());
    assert_eq!(value["linux"]["devices"][0]["path"], path);
    let rule = &value["linux"]["resources"]["devices"][0];
    assert_eq!(
        (&rule["access"], &rule["allow"]),
        (&"r".into(), &true.into())
    );
    let back: serde_json::Value = serde_json::from_str(&apply_undo(&text, &record)).unwrap();
    assert_eq!(back["linux"]["resources"]["devices"], serde_json::json!([]));
    assert!(rewrite_app(&document).0.find("/dev/crust").is_none());
}

#[test]
fn a_device_is_added_once_with_its_widest_access() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    let properties = [
        with_device("7:3", true),
        with_device("7:3", true),
        with_device("259:1", false),
        with_device("259:1", true),
    ];
    let (text, _) = rewrite_container(&document, MountMode::Hook, &properties);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let devices = value["linux"]["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2, "one entry for each device");
    let digest = target().digest().short();
    assert_eq!(devices[0]["path"], format!("/dev/crust/{digest}"));
    assert_eq!(
        (&devices[0]["major"], &devices[0]["minor"]),
        (&7.into(), &3.into())
    );
    let rules = value["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(
        (&rules[0]["access"], &rules[1]["access"]),
        (&"r".into(), &"rw".into())
    );
}

#[test]
fn only_hooks_that_runc_runs_have_a_timeout() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    for (delegate, has_timeout) in [(DelegateKind::Runc, true), (DelegateKind::Crun, false)] {
        let hooks = Hooks {
            delegate,
            ..hooks()
        };
        let properties = [with_device("7:3", false)];
        let volumes = ContainerVolumes {
            properties: &properties,
            rootfs: Path::new("/b/rootfs"),
        };
        let plan = container_plan(MountMode::Hook);
        let container_rewrite = container(&document, &plan, volumes, &Config::default(), &hooks);
        let sandbox_rewrite = sandbox(volumes.rootfs, &sandbox_plan(), &hooks);
        let mut added = Vec::new();
        for rewrite in [container_rewrite, sandbox_rewrite] {
            let (_, record) = apply_rewrite(&document, rewrite.unwrap());
            added.extend(record.added);
        }
        added.retain(|added| added.array.starts_with("hooks."));
        assert_eq!(added.len(), 5);
        for hook in added {
            let timeout = hook.element.get("timeout");
            assert_eq!(timeout.is_some(), has_timeout, "{delegate:?}: {hook:?}");
        }
    }
}

#[test]
fn a_mount_made_by_a_hook_is_removed_and_can_be_restored() {
    let document = Document::parse(APP.as_bytes()).unwrap();
    let properties = [with_device("7:3", true)];
    let (text, record) = rewrite_container(&document, MountMode::Hook, &properties);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mounts = value["mounts"].as_array().unwrap();
    assert_eq!(mounts.len(), 1);
    assert_eq!(mounts[0]["destination"], "/p");
    assert_eq!(value["linux"]["devices"].as_array().unwrap().len(), 1);
    let arguments = &value["hooks"]["createContainer"][0]["args"];
    assert_eq!(arguments[1], "mount");
    let argument = arguments.as_array().unwrap().last().unwrap();
    let argument: serde_json::Value = serde_json::from_str(argument.as_str().unwrap()).unwrap();
    assert_eq!(
        (&argument["destination"], &argument["readOnly"]),
        (&"/data".into(), &true.into())
    );
    let document = Document::parse(text.as_bytes()).unwrap();
    assert!(is_rewritten(&document, false, &Config::default()));
    let back: serde_json::Value = serde_json::from_str(&apply_undo(&text, &record)).unwrap();
    let before: serde_json::Value = serde_json::from_str(APP).unwrap();
    assert_eq!(back["mounts"], before["mounts"]);
    assert_eq!(back["hooks"]["createContainer"], serde_json::json!([]));
}

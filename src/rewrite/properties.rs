//! Property tests of rewriting: a rewrite changes only what it has to, and can be undone.

use std::path::{Path, PathBuf};

use crust_blockfs::DeviceNumber;
use crust_state::bundle::BundleRecord;
use crust_state::config::MountMode;
use crust_state::{Config, DelegateKind, TargetPath};
use crust_volume::VolumeProperties;
use rustix::mount::MountAttrFlags;
use serde_json::{Value, json};

use super::{
    ContainerVolumes, Hooks, Rewrite, RewrittenBundle, container, is_rewritten, sandbox, undo,
};
use crate::matching::{Match, MatchedBy};
use crate::oci::properties::parse_unambiguous;
use crate::oci::{ArrayPath, Document};
use crate::plan::{ContainerPlan, MountedIn, PlannedMount, SandboxPlan, VolumeOwner};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RewriteKind {
    Sandbox,
    /// One of `every` mounts with an absolute path as source shows a volume.
    Container {
        mount_mode: MountMode,
        every: usize,
    },
}

const ALL_KINDS: [RewriteKind; 4] = [
    RewriteKind::Sandbox,
    RewriteKind::Container {
        mount_mode: MountMode::Bind,
        every: 1,
    },
    RewriteKind::Container {
        mount_mode: MountMode::Bind,
        every: 2,
    },
    RewriteKind::Container {
        mount_mode: MountMode::Hook,
        every: 2,
    },
];

/// Checks all kinds of rewrites of a config. Panics if a property doesn't hold. `document` and `value` are the parsed
/// `text`; `value` is `None` if the text has no single value.
pub(crate) fn check(text: &[u8], document: &Document<'_>, value: Option<&Value>) {
    for kind in ALL_KINDS {
        check_undo(text, document, value, kind);
    }
}

fn check_undo(text: &[u8], document: &Document<'_>, value: Option<&Value>, kind: RewriteKind) {
    let config = Config::default();
    let is_sandbox = kind == RewriteKind::Sandbox;
    if is_rewritten(document, is_sandbox, &config) {
        return;
    }
    if let RewriteKind::Container { every, .. } = kind
        && planned(document, every).is_some_and(|planned| planned.is_empty())
    {
        // A plan always has mounts.
        return;
    }
    if document.mounts().is_err() {
        // Planning fails.
        return;
    }
    let unreadable = |array| document.array(array).is_err();
    let has_unreadable = ArrayPath::ALL.into_iter().any(unreadable);
    let Some((once, record)) = rewritten(document, kind) else {
        assert!(
            has_unreadable,
            "{kind:?}: a readable config can't be rewritten"
        );
        return;
    };
    let after = Document::parse(&once).expect("a rewritten config is valid");
    assert!(is_rewritten(&after, is_sandbox, &config));
    if let Some(value) = value {
        let after = parse_unambiguous(&once).expect("a rewritten config is unambiguous");
        assert_eq!(expected_value(value, &record, &after), after, "{kind:?}");
    }
    let edits = match undo(&after, &record, &config) {
        Ok(edits) => edits,
        // No delegate accepts such a config either.
        Err(_) if has_unreadable => return,
        Err(error) => panic!("{kind:?}: undo by the rewrite's own record: {error}"),
    };
    let restored = after.apply(&edits).expect("the edits of an undo apply");
    if had_all_arrays(document, value, &record) {
        let texts = [text, &restored].map(String::from_utf8_lossy);
        assert_eq!(texts[0], texts[1], "{kind:?}");
    }
    if let Some(value) = value {
        let values = [
            value.clone(),
            parse_unambiguous(&restored).expect("as before"),
        ]
        .map(without_empty);
        assert_eq!(values[0], values[1], "{kind:?}");
    }
    let document = Document::parse(&restored).expect("a restored config is valid");
    let (twice, _) = rewritten(&document, kind).expect("the second rewrite works like the first");
    if record.removed.is_empty() {
        let texts = [&once, &twice].map(|text| String::from_utf8_lossy(text));
        assert_eq!(texts[0], texts[1], "{kind:?}");
    } else {
        assert_eq!(
            parse_unambiguous(&once),
            parse_unambiguous(&twice),
            "{kind:?}"
        );
    }
}

/// Returns the rewritten text, and the record as it is read back from the disk.
fn rewritten(document: &Document<'_>, kind: RewriteKind) -> Option<(Vec<u8>, BundleRecord)> {
    let bundle = RewrittenBundle {
        config: "/b/config.json".into(),
        containers: vec!["c".to_owned()],
    };
    let (text, record) = rewrite(document, kind)?.apply(document, bundle).ok()?;
    let written = serde_json::to_vec(&record).expect("a record is JSON");
    let read = serde_json::from_slice(&written).expect("a written record can be read");
    assert_eq!(record, read);
    Some((text, read))
}

fn rewrite(document: &Document<'_>, kind: RewriteKind) -> Option<Rewrite> {
    let hooks = Hooks {
        program: "/usr/bin/crust-mount-hook".into(),
        cli: "/usr/bin/runcrust".into(),
        config: Some("/etc/runcrust/config.toml".into()),
        delegate: DelegateKind::Runc,
    };
    let rootfs = Path::new("/b/rootfs");
    let (mount_mode, every) = match kind {
        RewriteKind::Sandbox => {
            let volumes = ["/a", "/a b", "/c"].map(|path| TargetPath::new(path).expect("a path"));
            let plan = SandboxPlan {
                pod_uid: "u".into(),
                directory: "/.crust",
                volumes: volumes.to_vec(),
                label: None,
            };
            return sandbox(rootfs, &plan, &hooks).ok();
        }
        RewriteKind::Container { mount_mode, every } => (mount_mode, every),
    };
    let plan = ContainerPlan {
        mounted_in: match mount_mode {
            MountMode::Bind => MountedIn::Container(VolumeOwner::default()),
            MountMode::Hook => MountedIn::Hook(VolumeOwner::default()),
        },
        ids: None,
        label: None,
        mounts: planned(document, every)?,
    };
    let properties = test_properties(&plan.volumes().into_iter().cloned().collect::<Vec<_>>());
    let volumes = ContainerVolumes {
        properties: &properties,
        rootfs,
    };
    container(document, &plan, volumes, &Config::default(), &hooks).ok()
}

fn planned(document: &Document<'_>, every: usize) -> Option<Vec<PlannedMount>> {
    let mounts = document.mounts().ok()?;
    let with_path = mounts.into_iter().filter_map(|mount| {
        let source = mount.source?.into_owned();
        let found = Match {
            volume: TargetPath::new(&source).ok()?,
            subpath: PathBuf::new(),
            by: MatchedBy::Exact,
            read_only: false,
            resolved: None,
        };
        Some(PlannedMount {
            index: mount.index,
            destination: PathBuf::from(&*mount.destination),
            source,
            found,
            read_only: mount.index % 2 == 0,
            maps_ids: mount.has_id_mappings,
            options: mount.options.iter().map(ToString::to_string).collect(),
        })
    });
    Some(with_path.step_by(every).collect())
}

/// Returns properties for each volume. Some volumes share a device, some are read-only, and some need their device
/// node.
fn test_properties(volumes: &[TargetPath]) -> Vec<(TargetPath, VolumeProperties)> {
    let numbered = (0_u32..).zip(volumes);
    let properties = numbered.map(|(number, volume)| {
        let properties = VolumeProperties {
            device: Some(DeviceNumber::new(7, number % 2)),
            read_only: number % 3 == 0,
            device_node: number % 4 < 2,
            attributes: if number % 2 == 0 {
                MountAttrFlags::MOUNT_ATTR_NOSUID
            } else {
                MountAttrFlags::empty()
            },
        };
        (volume.clone(), properties)
    });
    properties.collect()
}

/// Applies the edits of a record to a value. The added options of mounts are taken from `after`, the rewritten value.
fn expected_value(value: &Value, record: &BundleRecord, after: &Value) -> Value {
    let mut value = value.clone();
    let attach = Config::default().attach_directory();
    for replaced in &record.sources {
        let attached = Path::new(&replaced.attached);
        let index = attached
            .strip_prefix(&attach)
            .expect("a path in the attach directory");
        let index: usize = index
            .to_str()
            .and_then(|it| it.parse().ok())
            .expect("a number");
        value["mounts"][index]["source"] = json!(replaced.attached);
        if replaced.mount.is_some() {
            let options = &mut value["mounts"][index]["options"];
            let given = options.as_array().cloned().unwrap_or_default();
            let written = after["mounts"][index]["options"].as_array();
            let written = written.expect("an array");
            let (kept, added) = written.split_at(given.len());
            assert_eq!(kept, given);
            assert!(!added.is_empty());
            let is_known = |option: &Value| ["nosuid", "ro", "rro"].iter().any(|it| option == it);
            assert!(added.iter().all(is_known), "{added:?}");
            *options = Value::from(written.clone());
        }
    }
    for removed in record.removed.iter().rev() {
        let mounts = value["mounts"].as_array_mut().expect("mounts");
        let mount = mounts.remove(removed.index);
        assert_eq!(parse_unambiguous(removed.json.as_bytes()), Some(mount));
    }
    for added in &record.added {
        let array = value_at(&mut value, &added.array);
        if array.is_null() {
            *array = json!([]);
        }
        array
            .as_array_mut()
            .expect("an array")
            .push(added.element.clone());
    }
    value
}

fn value_at<'v>(value: &'v mut Value, path: &str) -> &'v mut Value {
    path.split('.').fold(value, |parent, key| {
        if parent.is_null() {
            *parent = json!({});
        }
        &mut parent[key]
    })
}

/// Returns whether all changed arrays existed before. An undo then restores every byte.
fn had_all_arrays(document: &Document<'_>, value: Option<&Value>, record: &BundleRecord) -> bool {
    let existed = |array: ArrayPath| {
        let has_some = document.array(array).is_ok_and(|all| !all.is_empty());
        let is_array = |value: &Value| value_at(&mut value.clone(), array.name()).is_array();
        has_some || value.is_some_and(is_array)
    };
    let is_changed = |array: &ArrayPath| record.added.iter().any(|it| it.array == array.name());
    record.removed.is_empty() && ArrayPath::ALL.into_iter().filter(is_changed).all(existed)
}

/// Removes empty arrays and objects where a rewrite adds elements. They mean the same as if they were missing.
fn without_empty(mut value: Value) -> Value {
    for path in [
        "mounts",
        "hooks.createRuntime",
        "hooks.createContainer",
        "hooks.poststop",
        "hooks",
        "linux.devices",
        "linux.resources.devices",
        "linux.resources",
        "linux",
    ] {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut parent = parent.split('.').filter(|key| !key.is_empty());
        let parent = parent.try_fold(&mut value, |value, key| value.get_mut(key));
        let Some(Value::Object(parent)) = parent else {
            continue;
        };
        let is_nothing = |value: &Value| match value {
            Value::Null => true,
            Value::Array(elements) => elements.is_empty(),
            Value::Object(members) => members.is_empty(),
            _ => false,
        };
        if parent.get(key).is_some_and(is_nothing) {
            parent.remove(key);
        }
    }
    value
}

use std::path::{Path, PathBuf};

use crust_blockfs::identity::LookupError;
use crust_blockfs::location::{FsLocation, LocationError};
use crust_blockfs::openat2;
use crust_blockfs::user_namespace::{IdRange, UserNamespace};
use crust_state::Process;
use crust_state::crust::EntryError;
use crust_state::record::Version;
use crust_state::sandbox::SandboxRecord;

use super::*;
use crate::matching::{NodeLookup, ResolvedSource, StagedListError};

use crate::oci::Document;
use crate::role::RoleError;

mod refusals;

const UID: &str = "uid-1";
const TARGET: &str = "/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";

/// A node with some staged volumes and one sandbox: `s` of pod `uid-1`, process 100.
struct TestNode {
    staged: Vec<&'static str>,
    enforces_selinux: bool,
}

impl NodeLookup for TestNode {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        let is_staged = self.staged.iter().any(|it| Path::new(it) == path.as_path());
        Ok(is_staged.then(|| path.clone()))
    }

    fn resolve(&self, _: &Path) -> Result<ResolvedSource, LookupError> {
        Ok(ResolvedSource::default())
    }

    fn staged_in(&self, _: &Path) -> Result<Vec<TargetPath>, StagedListError> {
        Ok(vec![])
    }

    fn locate(&self, _: &Path) -> Result<Option<FsLocation>, LocationError> {
        Ok(None)
    }

    fn is_bare_directory(&self, _: &Path) -> Result<bool, LookupError> {
        Ok(false)
    }

    /// In each container, `/link` is a symbolic link to `a`.
    fn resolve_in_rootfs(&self, rootfs: &Path, path: &Path) -> PathBuf {
        assert!(rootfs.ends_with("rootfs"), "{}", rootfs.display());
        let path = openat2::resolve_in_root(Path::new("/no/such"), path);
        match path.strip_prefix("/link") {
            Ok(below) => Path::new("/a").join(below),
            Err(_) => path,
        }
    }
}

impl PlanLookup for TestNode {
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError> {
        let paths = self
            .staged
            .iter()
            .map(|path| TargetPath::new(path).unwrap());
        Ok(paths
            .filter(|path| path.pod_uid() == Some(pod_uid.as_ref()))
            .collect())
    }

    fn enforces_selinux(&self) -> bool {
        self.enforces_selinux
    }

    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError> {
        let process = Process {
            pid: 100,
            start_time: 1,
            boot_id: String::new(),
            pid_namespace: None,
        };
        let record = SandboxRecord {
            version: Version,
            id: "s".to_owned(),
            pod_uid: UID.to_owned(),
            process,
            mount_label: None,
            failures: vec![],
        };
        Ok((id == "s").then_some(record))
    }
}

fn plan_config(config: &str, role: Role, settings: &Config) -> Result<Plan, String> {
    let node = TestNode {
        staged: vec![TARGET, "/k/pods/uid-2/volumes/kubernetes.io~csi/pv-2/mount"],
        enforces_selinux: false,
    };
    let document = Document::parse(config.as_bytes()).unwrap();
    let (mounts, namespaces) = (document.mounts().unwrap(), document.namespaces().unwrap());
    let input = PlanInput {
        role: Ok(role),
        bundle: Path::new("/b"),
        mounts: &mounts,
        namespaces: &namespaces,
        details: &document,
        lookups: SourceLookups::default(),
        restores: false,
    };
    plan(input, settings, &node).map_err(|error| error.to_string())
}

fn member(sandbox: &str) -> Role {
    Role::AppContainer {
        sandbox_id: sandbox.to_owned(),
        pod_uid: None,
    }
}

/// Returns a config with these namespaces. The config also has a mount namespace if none is given.
fn config(source: &str, namespaces: &str) -> String {
    let own_mounts = r#"{"type":"mount"}"#;
    let namespaces = match namespaces {
        "" => own_mounts.to_owned(),
        _ if namespaces.contains("mount") => namespaces.to_owned(),
        _ => format!("{own_mounts},{namespaces}"),
    };
    with_namespaces(source, &namespaces)
}

fn with_namespaces(source: &str, namespaces: &str) -> String {
    format!(
        r#"{{"root":{{"path":"rootfs"}},"mounts":[{{"destination":"/proc","source":"proc","type":"proc"}},
            {{"destination":"/data","source":"{source}","type":"bind","options":["rbind"]}}],
            "linux":{{"namespaces":[{namespaces}]}}}}"#
    )
}

#[test]
fn a_planned_mount_has_its_index_and_its_volume() {
    let plan = plan_config(
        &config(&format!("{TARGET}/sub"), ""),
        member("s"),
        &Config::default(),
    );
    let Ok(Plan::Container(plan)) = plan else {
        panic!("{plan:?}")
    };
    assert!(matches!(&plan.mounted_in, MountedIn::Sandbox(record) if record.pod_uid == UID));
    let [mount] = &plan.mounts[..] else {
        panic!("{plan:?}")
    };
    assert_eq!((mount.index, &*mount.destination), (1, Path::new("/data")));
    assert_eq!(mount.found.volume.as_path(), Path::new(TARGET));
    assert_eq!(mount.found.subpath, Path::new("sub"));
    assert!(!mount.read_only);
}

#[test]
fn the_last_option_decides_whether_a_mount_is_read_only() {
    for (options, read_only) in [
        (r#""ro""#, true),
        (r#""rw","ro""#, true),
        (r#""ro","rw""#, false),
        (r#""rro""#, true),
        (r#""noatime""#, false),
    ] {
        let text = config(TARGET, "").replace("\"rbind\"", &format!("\"rbind\",{options}"));
        let plan = plan_config(&text, member("s"), &Config::default());
        let Ok(Plan::Container(plan)) = plan else {
            panic!("{plan:?}")
        };
        assert_eq!(plan.mounts[0].read_only, read_only, "{options}");
    }
}

#[test]
fn a_config_without_volumes_passes_through_whatever_the_role() {
    let roles = [
        member("s"),
        member("unknown"),
        Role::Standalone,
        Role::Sandbox { pod_uid: None },
    ];
    for role in roles {
        assert_eq!(
            plan_config(&config("/etc", ""), role, &Config::default()),
            Ok(Plan::PassThrough)
        );
    }
}

#[test]
fn a_sandbox_holds_only_its_pods_volumes() {
    let role = |uid: &str| Role::Sandbox {
        pod_uid: Some(uid.to_owned()),
    };
    let plan = plan_config(&config("/etc", ""), role(UID), &Config::default());
    let volumes = vec![TargetPath::new(TARGET).unwrap()];
    assert_eq!(
        plan,
        Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: UID.into(),
            directory: SANDBOX_CRUST_DIR,
            volumes,
            label: None,
        }))
    );
    let none = plan_config(&config("/etc", ""), role("uid-3"), &Config::default());
    assert_eq!(none, Ok(Plan::PassThrough));
    let always = Config {
        sandbox: SandboxMode::Always,
        ..Config::default()
    };
    let empty = SandboxPlan {
        pod_uid: "uid-3".into(),
        directory: SANDBOX_CRUST_DIR,
        volumes: vec![],
        label: None,
    };
    assert_eq!(
        plan_config(&config("/etc", ""), role("uid-3"), &always),
        Ok(Plan::Sandbox(empty))
    );
}

#[test]
fn a_match_that_cannot_be_mounted_is_refused_with_a_hint() {
    let table = [
        (
            config(TARGET, ""),
            member("unknown"),
            "sandbox = \"always\"",
        ),
        (
            config(TARGET, ""),
            Role::Sandbox {
                pod_uid: Some(UID.into()),
            },
            "a sandbox only holds volumes",
        ),
        (
            config(&TARGET.replace('1', "2"), ""),
            Role::AppContainer {
                sandbox_id: "unknown".into(),
                pod_uid: Some(UID.into()),
            },
            "its target path belongs to pod uid-2",
        ),
        (
            config(&TARGET.replace('1', "2"), ""),
            member("s"),
            "its target path belongs to pod uid-2",
        ),
        (
            config(TARGET, r#"{"type":"user"}"#),
            member("s"),
            "user namespace without id mappings",
        ),
        (
            config(TARGET, r#"{"type":"ipc","path":"/proc/101/ns/ipc"}"#),
            member("s"),
            "joins namespace /proc/101/ns/ipc, but sandbox s is process 100",
        ),
        (
            config(TARGET, "").replace("bind", "ext4"),
            member("s"),
            "isn't a bind mount",
        ),
    ];
    let settings = Config {
        kubelet_dirs: vec!["/k".into()],
        ..Config::default()
    };
    for (config, role, expected) in table {
        let error = plan_config(&config, role, &settings).unwrap_err();
        assert!(
            error.starts_with("volume pv-") && error.contains(expected),
            "{error}"
        );
    }
    // A sandbox's create looks for volumes only in the configured directories.
    let elsewhere = Config {
        kubelet_dirs: vec!["/var/lib/kubelet".into()],
        ..Config::default()
    };
    let error = plan_config(&config(TARGET, ""), member("unknown"), &elsewhere).unwrap_err();
    assert!(error.contains("/k isn't among kubelet_dirs"), "{error}");
}

/// An ephemeral container joins the PID namespace of its target.
#[test]
fn a_container_may_join_namespaces_of_its_sandbox() {
    let namespaces = r#"{"type":"ipc","path":"/proc/100/ns/ipc"},{"type":"mount"},
        {"type":"network","path":"/var/run/netns/cni-1"},{"type":"pid","path":"/proc/7/ns/pid"}"#;
    let plan = plan_config(&config(TARGET, namespaces), member("s"), &Config::default());
    assert!(matches!(plan, Ok(Plan::Container(_))), "{plan:?}");
}

#[test]
fn a_container_with_volumes_is_restored_but_a_sandbox_is_not() {
    let restored = |role, source: &str| {
        let text = config(source, "");
        let document = Document::parse(text.as_bytes()).unwrap();
        let mounts = document.mounts().unwrap();
        let input = PlanInput {
            role: Ok(role),
            bundle: Path::new("/b"),
            mounts: &mounts,
            namespaces: &document.namespaces().unwrap(),
            details: &document,
            lookups: SourceLookups::default(),
            restores: true,
        };
        let node = TestNode {
            staged: vec![TARGET],
            enforces_selinux: false,
        };
        plan(input, &Config::default(), &node).map_err(|error| error.to_string())
    };
    let container = restored(member("s"), TARGET);
    assert!(matches!(container, Ok(Plan::Container(_))), "{container:?}");
    let pod_uid = Some(UID.to_owned());
    let error = restored(Role::Sandbox { pod_uid }, "/etc").unwrap_err();
    assert!(error.contains("can't be restored"), "{error}");
}

#[test]
fn a_sandbox_with_volumes_may_create_but_not_join_namespaces() {
    let role = |uid: &str| Role::Sandbox {
        pod_uid: Some(uid.to_owned()),
    };
    let text = config("/etc", r#"{"type":"ipc","path":"/proc/100/ns/ipc"}"#);
    let error = plan_config(&text, role(UID), &Config::default()).unwrap_err();
    assert!(
        error.starts_with("volume pv-1: a sandbox that joins"),
        "{error}"
    );
    let other = plan_config(&text, role("uid-3"), &Config::default());
    assert_eq!(other, Ok(Plan::PassThrough), "nothing is staged for it");
    let text = config("/etc", r#"{"type":"user"}"#);
    let plan = plan_config(&text, role(UID), &Config::default());
    let Ok(Plan::Sandbox(plan)) = plan else {
        panic!("{plan:?}")
    };
    assert!(plan.volumes.len() == 1, "{plan:?}");
}

fn container(config: &str, role: Role, settings: &Config) -> ContainerPlan {
    match plan_config(config, role, settings) {
        Ok(Plan::Container(plan)) => plan,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_a_sandbox_the_target_path_names_the_pod() {
    let plan = container(&config(TARGET, ""), Role::Standalone, &Config::default());
    let volume = &plan.mounts[0].found.volume;
    assert_eq!(plan.mounted_in.pod_uid(volume, "c"), UID);
    assert_eq!(plan.mounted_in.sandbox("c"), "c");
    let elsewhere = TargetPath::new("/srv/data").unwrap();
    assert_eq!(plan.mounted_in.pod_uid(&elsewhere, "c"), "c");
}

#[test]
fn a_pod_uid_from_annotations_counts_without_a_sandbox_record() {
    let role = |sandbox: &str, uid: &str| Role::AppContainer {
        sandbox_id: sandbox.into(),
        pod_uid: Some(uid.into()),
    };
    let settings = Config::default();
    let plan = container(&config(TARGET, ""), role("none", UID), &settings);
    let owner = VolumeOwner {
        pod_uid: Some(UID.to_owned()),
        sandbox: Some("none".to_owned()),
    };
    assert_eq!(plan.mounted_in, MountedIn::Container(owner));
    let plan = container(&config(TARGET, ""), role("s", UID), &settings);
    assert!(
        matches!(plan.mounted_in, MountedIn::Sandbox(_)),
        "the sandbox's record is used if there is one"
    );
    let error = plan_config(&config(TARGET, ""), role("s", "another"), &settings).unwrap_err();
    assert!(
        error.contains("belongs to pod another, but sandbox s was created for pod uid-1"),
        "{error}"
    );
}

#[test]
fn the_ids_of_a_user_namespace_come_from_the_config() {
    let own = config(
        TARGET,
        r#"{"type":"user"}],"uidMappings":[{"containerID":0,"hostID":5,"size":7}],
        "gidMappings":[{"containerID":1,"hostID":6,"size":8}"#,
    );
    let plan = container(&own, Role::Standalone, &Config::default());
    let (users, groups) = (
        vec![IdRange {
            container: 0,
            host: 5,
            size: 7,
        }],
        vec![IdRange {
            container: 1,
            host: 6,
            size: 8,
        }],
    );
    assert_eq!(plan.ids, Some(UserNamespace::New { users, groups }));
    let joined = config(TARGET, r#"{"type":"user","path":"/proc/100/ns/user"}"#);
    let plan = container(&joined, member("s"), &Config::default());
    let path = Path::new("/proc/100/ns/user").into();
    assert_eq!(plan.ids, Some(UserNamespace::Joined(path)));
    let other = config(TARGET, r#"{"type":"user","path":"/proc/101/ns/user"}"#);
    let error = plan_config(&other, member("s"), &Config::default()).unwrap_err();
    assert!(error.contains("joins namespace /proc/101"), "{error}");
}

#[test]
fn a_mount_with_id_mappings_is_mapped_by_the_delegate() {
    for (change, maps) in [
        ("\"rbind\"", false),
        ("\"rbind\",\"ridmap\"", true),
        ("\"bind\",\"idmap=uids=0-1-2\"", true),
        ("\"rbind\"],\"uidMappings\":[{\"size\":1}", true),
        ("\"rbind\"],\"gidMappings\":[{\"size\":1}", true),
    ] {
        let text = config(TARGET, "").replace("\"rbind\"", change);
        let plan = container(&text, member("s"), &Config::default());
        assert_eq!(plan.mounts[0].maps_ids, maps, "{change}");
    }
}

const OWN_MOUNTS: &str = r#"{"type":"mount"}"#;

#[test]
fn a_volume_that_would_hide_a_mount_is_refused_with_hooks() {
    let hook = Config {
        mount_mode: MountMode::Hook,
        ..Config::default()
    };
    let with = |destination: &str, source: &str| {
        let other = format!(
            r#""mounts":[{{"destination":"{destination}","source":"{source}","type":"bind"}},"#
        );
        config(TARGET, OWN_MOUNTS).replace("\"mounts\":[", &other)
    };
    let plan = container(&with("/database", "/x"), member("s"), &hook);
    assert!(
        matches!(plan.mounted_in, MountedIn::Hook(owner) if owner.pod_uid.as_deref() == Some(UID))
    );
    for below in ["/data", "/data/", "/data/x/y", "/x/../data/z", "data/x"] {
        let error = plan_config(&with(below, "/x"), member("s"), &hook).unwrap_err();
        assert!(
            error.contains("the volume would hide it"),
            "{below}: {error}"
        );
        container(&with(below, "/x"), member("s"), &Config::default());
    }
    let inner = with("/a", TARGET).replace("/data", "/a/data");
    assert_eq!(container(&inner, member("s"), &hook).mounts.len(), 2);
    let error = plan_config(&with("/data/x", TARGET), member("s"), &hook).unwrap_err();
    assert!(error.contains("/data/x"), "in the wrong order: {error}");
    for (namespaces, expected) in [
        (
            r#"{"type":"mount"},{"type":"user","path":"/proc/100/ns/user"}"#,
            "in a user namespace a hook",
        ),
        (r#"{"type":"mount"},{"type":"time"}"#, "in a time namespace"),
    ] {
        let text = config(TARGET, namespaces);
        let error = plan_config(&text, member("s"), &hook).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn with_hooks_a_sandboxs_plan_has_no_volumes() {
    let hook = Config {
        mount_mode: MountMode::Hook,
        ..Config::default()
    };
    let pod_uid = Some(UID.to_owned());
    let plan = plan_config(&config("/etc", ""), Role::Sandbox { pod_uid }, &hook);
    let Ok(Plan::Sandbox(plan)) = plan else {
        panic!("{plan:?}")
    };
    assert_eq!(plan.volumes, []);
}

#[test]
fn an_unknown_role_is_refused_only_with_a_volume() {
    let node = TestNode {
        staged: vec![TARGET],
        enforces_selinux: false,
    };
    for (source, refused) in [("/etc", false), (TARGET, true)] {
        let text = config(source, "");
        let document = Document::parse(text.as_bytes()).unwrap();
        let mounts = document.mounts().unwrap();
        let input = PlanInput {
            role: Err(RoleError::UnknownType("key", "pod".into())),
            bundle: Path::new("/b"),
            mounts: &mounts,
            namespaces: &document.namespaces().unwrap(),
            details: &document,
            lookups: SourceLookups::default(),
            restores: false,
        };
        let planned = plan(input, &Config::default(), &node);
        assert_eq!(planned.is_err(), refused, "{source}: {planned:?}");
    }
}

#[test]
fn a_relative_bind_source_is_resolved_against_the_bundle() {
    let text = config(&TARGET[1..], "");
    let document = Document::parse(text.as_bytes()).unwrap();
    let mounts = document.mounts().unwrap();
    let input = PlanInput {
        role: Ok(member("s")),
        bundle: Path::new("/"),
        mounts: &mounts,
        namespaces: &document.namespaces().unwrap(),
        details: &document,
        lookups: SourceLookups::default(),
        restores: false,
    };
    let node = TestNode {
        staged: vec![TARGET],
        enforces_selinux: false,
    };
    let plan = plan(input, &Config::default(), &node);
    assert!(matches!(plan, Ok(Plan::Container(_))), "{plan:?}");
}

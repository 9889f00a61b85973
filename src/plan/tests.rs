use std::path::Path;

use crust_state::Process;
use crust_state::record::Version;

use super::*;
use crate::oci::Document;

const UID: &str = "uid-1";
const TARGET: &str = "/k/pods/uid-1/volumes/kubernetes.io~csi/pv-1/mount";

/// A node with some staged volumes and one sandbox, `s`, of pod `uid-1`, process 100.
struct Table {
    staged: Vec<&'static str>,
}

impl Node for Table {
    fn staged(&self, path: &TargetPath) -> Result<Option<TargetPath>, EntryError> {
        let here = |staged: &&&str| Path::new(staged) == path.as_path();
        Ok(self.staged.iter().find(here).map(|_| path.clone()))
    }

    fn resolved(&self, _: &Path) -> Option<TargetPath> {
        None
    }

    fn is_bare_directory(&self, _: &Path) -> bool {
        false
    }
}

impl Records for Table {
    fn staged_for_pod(&self, pod_uid: &str) -> Result<Vec<TargetPath>, PlanError> {
        let paths = self
            .staged
            .iter()
            .map(|path| TargetPath::new(path).unwrap());
        Ok(paths
            .filter(|path| path.pod_uid() == Some(pod_uid.as_ref()))
            .collect())
    }

    fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, PlanError> {
        let process = Process {
            pid: 100,
            start_time: 1,
            boot_id: String::new(),
        };
        let (known, pod_uid) = ("s".to_owned(), UID.to_owned());
        let record = SandboxRecord {
            version: Version,
            id: known,
            pod_uid,
            process,
            failures: vec![],
        };
        Ok((id == "s").then_some(record))
    }
}

fn planned(config: &str, role: Role, settings: &Config) -> Result<Plan, String> {
    let table = Table {
        staged: vec![TARGET, "/k/pods/uid-2/volumes/kubernetes.io~csi/pv-2/mount"],
    };
    let document = Document::parse(config.as_bytes()).unwrap();
    let (mounts, namespaces) = (document.mounts().unwrap(), document.namespaces().unwrap());
    let facts = Facts {
        role: Ok(role),
        bundle: Path::new("/b"),
        mounts: &mounts,
        namespaces: &namespaces,
        restores: false,
    };
    plan(facts, settings, &table).map_err(|error| error.to_string())
}

fn member(sandbox: &str) -> Role {
    Role::Member {
        sandbox_id: sandbox.to_owned(),
    }
}

fn config(source: &str, namespaces: &str) -> String {
    format!(
        r#"{{"mounts":[{{"destination":"/proc","source":"proc","type":"proc"}},
            {{"destination":"/data","source":"{source}","type":"bind","options":["rbind"]}}],
            "linux":{{"namespaces":[{namespaces}]}}}}"#
    )
}

#[test]
fn a_members_mount_keeps_its_index_and_names_its_volume() {
    let plan = planned(
        &config(&format!("{TARGET}/sub"), ""),
        member("s"),
        &Config::default(),
    );
    let Ok(Plan::Member(plan)) = plan else {
        panic!("{plan:?}")
    };
    assert_eq!(plan.sandbox.pod_uid, UID);
    let [mount] = &plan.mounts[..] else {
        panic!("{plan:?}")
    };
    assert_eq!((mount.index, &*mount.destination), (1, Path::new("/data")));
    assert_eq!(mount.found.volume.as_path(), Path::new(TARGET));
    assert_eq!(mount.found.subpath, Path::new("sub"));
    assert!(!mount.read_only);
}

#[test]
fn a_mount_is_read_only_by_its_last_word() {
    for (options, read_only) in [
        (r#""ro""#, true),
        (r#""rw","ro""#, true),
        (r#""ro","rw""#, false),
        (r#""rro""#, true),
        (r#""noatime""#, false),
    ] {
        let text = config(TARGET, "").replace("\"rbind\"", &format!("\"rbind\",{options}"));
        let plan = planned(&text, member("s"), &Config::default());
        let Ok(Plan::Member(plan)) = plan else {
            panic!("{plan:?}")
        };
        assert_eq!(plan.mounts[0].read_only, read_only, "{options}");
    }
}

#[test]
fn nothing_of_ours_is_passed_on_whatever_the_role() {
    let roles = [
        member("s"),
        member("unknown"),
        Role::Standalone,
        Role::Sandbox { pod_uid: None },
    ];
    for role in roles {
        assert_eq!(
            planned(&config("/etc", ""), role, &Config::default()),
            Ok(Plan::PassOn)
        );
    }
}

#[test]
fn a_sandbox_holds_its_own_pods_volumes_only() {
    let role = |uid: &str| Role::Sandbox {
        pod_uid: Some(uid.to_owned()),
    };
    let plan = planned(&config("/etc", ""), role(UID), &Config::default());
    let volumes = vec![TargetPath::new(TARGET).unwrap()];
    assert_eq!(
        plan,
        Ok(Plan::Sandbox(SandboxPlan {
            pod_uid: UID.into(),
            volumes
        }))
    );
    let none = planned(&config("/etc", ""), role("uid-3"), &Config::default());
    assert_eq!(none, Ok(Plan::PassOn));
    let always = Config {
        sandbox: SandboxMode::Always,
        ..Config::default()
    };
    let empty = SandboxPlan {
        pod_uid: "uid-3".into(),
        volumes: vec![],
    };
    assert_eq!(
        planned(&config("/etc", ""), role("uid-3"), &always),
        Ok(Plan::Sandbox(empty))
    );
}

#[test]
fn a_match_that_cannot_be_carried_out_is_refused_with_the_next_step() {
    let table = [
        (
            config(TARGET, ""),
            member("unknown"),
            "sandbox = \"always\"",
        ),
        (
            config(TARGET, ""),
            Role::Standalone,
            "needs a pod's sandbox",
        ),
        (
            config(TARGET, ""),
            Role::Sandbox {
                pod_uid: Some(UID.into()),
            },
            "needs a pod's sandbox",
        ),
        (
            config(&TARGET.replace('1', "2"), ""),
            member("s"),
            "its target path is of pod uid-2",
        ),
        (
            config(TARGET, r#"{"type":"user"}"#),
            member("s"),
            "user namespace",
        ),
        (
            config(TARGET, r#"{"type":"ipc","path":"/proc/101/ns/ipc"}"#),
            member("s"),
            "joins namespace /proc/101/ns/ipc, and sandbox s is process 100",
        ),
        (
            config(TARGET, "").replace("bind", "ext4"),
            member("s"),
            "isn't a bind mount",
        ),
    ];
    for (config, role, expected) in table {
        let error = planned(&config, role, &Config::default()).unwrap_err();
        assert!(
            error.starts_with("volume pv-") && error.contains(expected),
            "{error}"
        );
    }
}

#[test]
fn the_sandboxs_namespaces_and_an_ephemeral_containers_pid_namespace_are_fine() {
    let namespaces = r#"{"type":"ipc","path":"/proc/100/ns/ipc"},{"type":"mount"},
        {"type":"network","path":"/var/run/netns/cni-1"},{"type":"pid","path":"/proc/7/ns/pid"}"#;
    let plan = planned(&config(TARGET, namespaces), member("s"), &Config::default());
    assert!(matches!(plan, Ok(Plan::Member(_))), "{plan:?}");
}

#[test]
fn a_container_with_volumes_is_not_restored() {
    let text = config(TARGET, "");
    let document = Document::parse(text.as_bytes()).unwrap();
    let mounts = document.mounts().unwrap();
    let facts = Facts {
        role: Ok(member("s")),
        bundle: Path::new("/b"),
        mounts: &mounts,
        namespaces: &[],
        restores: true,
    };
    let table = Table {
        staged: vec![TARGET],
    };
    let error = plan(facts, &Config::default(), &table)
        .unwrap_err()
        .to_string();
    assert!(error.contains("restoring"), "{error}");
}

#[test]
fn a_sandbox_in_a_users_namespace_or_a_processs_takes_no_volumes() {
    for (namespace, expected) in [
        (
            r#"{"type":"ipc","path":"/proc/100/ns/ipc"}"#,
            "a sandbox that joins",
        ),
        (r#"{"type":"user"}"#, "user namespace"),
    ] {
        let role = |uid: &str| Role::Sandbox {
            pod_uid: Some(uid.to_owned()),
        };
        let text = config("/etc", namespace);
        let error = planned(&text, role(UID), &Config::default()).unwrap_err();
        assert!(
            error.starts_with("volume pv-1: ") && error.contains(expected),
            "{error}"
        );
        let other = planned(&text, role("uid-3"), &Config::default());
        assert_eq!(other, Ok(Plan::PassOn), "nothing is staged for it");
    }
}

#[test]
fn what_a_config_says_of_its_pod_matters_only_with_a_volume() {
    let table = Table {
        staged: vec![TARGET],
    };
    for (source, refused) in [("/etc", false), (TARGET, true)] {
        let text = config(source, "");
        let document = Document::parse(text.as_bytes()).unwrap();
        let mounts = document.mounts().unwrap();
        let facts = Facts {
            role: Err(RoleError::UnknownType("pod".into())),
            bundle: Path::new("/b"),
            mounts: &mounts,
            namespaces: &[],
            restores: false,
        };
        let planned = plan(facts, &Config::default(), &table);
        assert_eq!(planned.is_err(), refused, "{source}: {planned:?}");
    }
}

#[test]
fn a_relative_bind_source_is_the_bundles() {
    let text = config(&TARGET[1..], "");
    let document = Document::parse(text.as_bytes()).unwrap();
    let mounts = document.mounts().unwrap();
    let facts = Facts {
        role: Ok(member("s")),
        bundle: Path::new("/"),
        mounts: &mounts,
        namespaces: &[],
        restores: false,
    };
    let table = Table {
        staged: vec![TARGET],
    };
    let plan = plan(facts, &Config::default(), &table);
    assert!(matches!(plan, Ok(Plan::Member(_))), "{plan:?}");
}

//! The pass as a whole, on directories of the test's own.

use std::fs;
use std::path::PathBuf;

use crust_state::record::{Superblock, User, UserKind, Version, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, CrustDirectory, MountInfo, Process, StateDirectory, TargetPath};

use super::*;

struct Node {
    config: Config,
    root: PathBuf,
    _guard: tempfile::TempDir,
}

fn dead() -> Process {
    Process {
        boot_id: "another".into(),
        ..Process::current().unwrap()
    }
}

impl Node {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        let config = Config {
            crust_root: root.join("crust"),
            state_dir: root.join("run"),
            kubelet_dirs: vec![root.join("kubelet")],
            ..Config::default()
        };
        Self {
            config,
            root,
            _guard: guard,
        }
    }

    fn with<T>(&self, work: impl FnOnce(&Context<'_>) -> T) -> T {
        let crust = CrustDirectory::new(&self.config);
        let state = StateDirectory::at(&self.config.state_dir).unwrap();
        work(&Context {
            config: &self.config,
            crust: &crust,
            state: &state,
            deadline: Deadline::after(Duration::from_secs(10)),
        })
    }

    fn stage(&self, pod: &str) -> TargetPath {
        let target = self.root.join(format!(
            "kubelet/pods/{pod}/volumes/kubernetes.io~csi/pv/mount"
        ));
        fs::create_dir_all(&target).unwrap();
        let target = TargetPath::new(target).unwrap();
        let text = br#"{"volume-type":"block","device":"/dev/there-is-none","fstype":"ext4"}"#;
        let info = MountInfo {
            target_path: Some(target.clone()),
            ..MountInfo::parse(text).unwrap()
        };
        self.with(|context| context.crust.stage(&target, &info))
            .unwrap();
        target
    }

    fn give(&self, target: &TargetPath, process: Process) {
        let user = User {
            kind: UserKind::Container,
            id: "c".into(),
            sandbox: "s".into(),
            pod_uid: "a".into(),
            process,
            mounts: Vec::new(),
            others: Vec::new(),
        };
        let record = VolumeRecord {
            version: Version,
            device: "259:9999".parse().unwrap(),
            superblock: Superblock {
                fstype: "ext4".into(),
                options: Vec::new(),
                read_only: false,
            },
            exclusive: false,
            prepared_for: Vec::new(),
            users: vec![user],
        };
        self.with(|context| {
            let volume = context.crust.volume(target).unwrap().unwrap();
            volume.write_record(&record).unwrap();
            volume.publish_cli(Path::new("/cli")).unwrap();
            context.state.add_owner(record.device, target).unwrap();
        });
    }

    fn sandbox(&self, id: &str, pod_uid: &str, process: Process) {
        let record = SandboxRecord {
            version: Version,
            id: id.into(),
            pod_uid: pod_uid.into(),
            process,
            mount_label: None,
            failures: Vec::new(),
        };
        self.with(|context| context.state.write_sandbox(&record).unwrap());
    }

    /// What is removed and what is left, by kinds; the dry run before it said the same.
    fn reconcile(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let before = self.files();
        let told = self.with(|context| reconcile(context, Mode::DryRun, &|_| false));
        assert_eq!(self.files(), before, "a dry run changes nothing");
        let done = self.with(|context| reconcile(context, Mode::Remove, &|_| false));
        assert_eq!(told, done);
        assert_eq!(done.failed, []);
        let kinds = |findings: &[Finding]| findings.iter().map(|it| it.thing.kind()).collect();
        (kinds(&done.removed), kinds(&done.left))
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                directories.extend(path.is_dir().then(|| path.clone()));
                files.push(path);
            }
        }
        files.sort();
        files
    }
}

#[test]
fn where_there_is_nothing_nothing_is_made() {
    let node = Node::new();
    assert_eq!(node.reconcile(), (vec![], vec![]));
    assert_eq!(node.files(), <[PathBuf; 0]>::default());
}

#[test]
fn a_boot_leaves_what_is_staged_and_nobody_who_has_it() {
    let node = Node::new();
    let target = node.stage("a");
    node.give(&target, dead());
    node.sandbox("s", "a", dead());
    let owners = node.config.state_dir.join("owners/259:9999.json");
    let text = fs::read_to_string(&owners).unwrap();
    let rebooted = text.replace(&Process::current().unwrap().boot_id, "another");
    fs::write(&owners, rebooted).unwrap();
    let removed = vec!["sandbox", "user", "record", "owner"];
    assert_eq!(node.reconcile(), (removed, vec![]));
    assert_eq!(node.reconcile(), (vec![], vec![]));
    let entry = node.config.crust_root.join(target.digest().to_string());
    let mut files: Vec<_> = fs::read_dir(&entry)
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["mountInfo.json", "target.json"]);
}

#[test]
fn what_lives_is_not_told() {
    let node = Node::new();
    let target = node.stage("a");
    node.give(&target, Process::current().unwrap());
    node.sandbox("s", "a", Process::current().unwrap());
    fs::remove_dir_all(node.root.join("kubelet")).unwrap();
    let before = node.files();
    assert_eq!(node.reconcile(), (vec![], vec![]));
    assert_eq!(node.files(), before);
}

#[test]
fn a_volume_goes_with_its_owners_when_its_target_directory_is_gone() {
    let node = Node::new();
    let target = node.stage("a");
    let other = node.stage("b");
    node.give(&target, dead());
    fs::remove_dir_all(node.root.join("kubelet/pods/a")).unwrap();
    node.sandbox("s", "a", Process::current().unwrap());
    assert_eq!(
        node.reconcile(),
        (vec!["user", "record"], vec![]),
        "its pod lives"
    );
    let unreadable = node.config.state_dir.join("sandboxes/t.json");
    fs::write(&unreadable, "{").unwrap();
    node.sandbox("s", "a", dead());
    assert_eq!(
        node.reconcile(),
        (vec!["sandbox"], vec!["sandbox", "volume"]),
        "it may"
    );
    fs::remove_file(unreadable).unwrap();
    assert_eq!(node.reconcile(), (vec!["volume", "owner"], vec![]));
    assert_eq!(node.reconcile(), (vec![], vec![]));
    let left = node.with(|context| context.crust.survey()).unwrap();
    assert_eq!(
        left.iter()
            .map(|it| it.target().unwrap())
            .collect::<Vec<_>>(),
        [&other]
    );
    assert_eq!(
        node.with(|context| context.state.owned_devices()).unwrap(),
        []
    );
}

#[test]
fn a_volume_that_somebody_is_at_is_left_and_so_is_what_cannot_be_read() {
    let node = Node::new();
    let (held, damaged, nameless) = (node.stage("a"), node.stage("b"), node.stage("c"));
    node.give(&held, dead());
    let entry = |target: &TargetPath| node.config.crust_root.join(target.digest().to_string());
    fs::write(entry(&damaged).join("runcrust.json"), "{").unwrap();
    let info = r#"{"device":"/dev/x","volume-type":"block","fstype":"ext4"}"#;
    fs::write(entry(&nameless).join("mountInfo.json"), info).unwrap();
    let lock = LockName::Volume(held.digest());
    let lock = node
        .with(|context| context.state.lock(lock, context.deadline))
        .unwrap();
    assert_eq!(node.reconcile(), (vec![], vec!["volume", "volume"]));
    drop(lock);
    assert_eq!(node.reconcile(), (vec!["user", "record"], vec!["volume"]));
}

#[test]
fn what_there_was_no_time_for_is_left() {
    let node = Node::new();
    let target = node.stage("a");
    node.give(&target, dead());
    let report = node.with(|context| {
        let deadline = Deadline::after(Duration::ZERO);
        reconcile(
            &Context {
                deadline,
                ..*context
            },
            Mode::Remove,
            &|_| false,
        )
    });
    let [Finding { thing, why }] = &report.left[..] else {
        panic!("{report:?}");
    };
    assert_eq!(thing, &Thing::Volume(target));
    assert!(why.contains("no time"), "{why}");
}

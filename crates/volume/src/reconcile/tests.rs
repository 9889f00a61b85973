//! Whole passes on temporary directories.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use crust_state::bundle::{BundleRecord, Containers};
use crust_state::record::{Superblock, User, UserKind, Version, VolumeRecord};
use crust_state::sandbox::SandboxRecord;
use crust_state::{Config, CrustDirectory, MountInfo, Process, StateDirectory, TargetPath};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::target_index;
use crust_blockfs::device::LoopDeviceCache;

/// The path of a runtime that owns nothing in these tests.
const OTHER_RUNTIME: &str = "/no-such-runtime";

struct TestNode {
    config: Config,
    root: PathBuf,
    _guard: tempfile::TempDir,
}

fn parent() -> i32 {
    std::os::unix::process::parent_id().cast_signed()
}

fn ended_process() -> Process {
    Process {
        boot_id: "another".into(),
        ..Process::current().unwrap()
    }
}

impl TestNode {
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

    /// Returns a node on which the pod's directory is a symbolic link. Its volumes then have two entries.
    fn with_linked_pod(pod: &str) -> Self {
        let node = Self::new();
        let (given, real) = (node.root.join("kubelet/pods"), node.root.join("real"));
        fs::create_dir_all(&given).unwrap();
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, given.join(pod)).unwrap();
        node
    }

    fn with_context<T>(&self, work: impl FnOnce(&Context<'_>) -> T) -> T {
        let crust = CrustDirectory::new(&self.config);
        let state = StateDirectory::open_lazily(&self.config.state_dir).unwrap();
        work(&Context {
            config: &self.config,
            crust: &crust,
            state: &state,
            deadline: Deadline::after(Duration::from_secs(10)),
            loop_devices: &LoopDeviceCache::default(),
        })
    }

    fn stage(&self, pod: &str) -> TargetPath {
        let (target, info) = self.create_target(pod);
        self.with_context(|context| {
            context.state.add_targets(&[target.look_up()]).unwrap();
            context.crust.stage(&target, &info).unwrap();
        });
        target
    }

    /// Creates a target directory for a pod's volume, and returns its path and metadata to stage.
    fn create_target(&self, pod: &str) -> (TargetPath, MountInfo) {
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
        (target, info)
    }

    fn entry(&self, target: &TargetPath) -> PathBuf {
        self.config.crust_root.join(target.digest().to_string())
    }

    /// Records a process as the user of a volume on device 259:9999.
    fn add_user(&self, target: &TargetPath, process: Process) {
        let user = User {
            kind: UserKind::Container,
            id: "c".into(),
            sandbox: "s".into(),
            pod_uid: "a".into(),
            process,
            mounts: Vec::new(),
            other_mounts: Vec::new(),
        };
        let record = VolumeRecord {
            version: Version,
            backing: "259:9999".parse().unwrap(),
            superblocks: Vec::new(),
            refused_fs_group: None,
            superblock: Superblock {
                fstype: "ext4".into(),
                options: Vec::new(),
                read_only: false,
            },
            exclusive: false,
            prepared_for: Vec::new(),
            users: vec![user],
        };
        self.with_context(|context| {
            let volume = context.crust.volume(target).unwrap().unwrap();
            volume.write_record(&record).unwrap();
            volume.write_runtime_cli(Path::new("/cli")).unwrap();
            context
                .state
                .add_volume(record.backing.key(), target)
                .unwrap();
        });
    }

    fn write_sandbox(&self, id: &str, pod_uid: &str, process: Process) {
        let record = SandboxRecord {
            version: Version,
            id: id.into(),
            pod_uid: pod_uid.into(),
            process,
            mount_label: None,
            failures: Vec::new(),
        };
        self.with_context(|context| context.state.write_sandbox(&record).unwrap());
    }

    /// Makes the owners' list of device 259:9999 one of an earlier boot.
    fn reboot(&self) {
        let owners = self.config.state_dir.join("owners/259:9999.json");
        let text = fs::read_to_string(&owners).unwrap();
        let rebooted = text.replace(&Process::current().unwrap().boot_id, "another");
        fs::write(&owners, rebooted).unwrap();
    }

    fn volume_locks(&self) -> Vec<PathBuf> {
        let mut locks = self.all_locks();
        locks.retain(|(name, _)| matches!(name, LockName::Volume(_)));
        locks.into_iter().map(|(_, path)| path).collect()
    }

    fn all_locks(&self) -> Vec<(LockName, PathBuf)> {
        let mut locks = Vec::new();
        let visited = self.with_context(|context| {
            context.state.visit_locks(|name, path| {
                locks.push((name, path));
                ControlFlow::Continue(())
            })
        });
        visited.unwrap();
        locks
    }

    /// Reconciles, and returns the kinds of the removed and of the left items. Checks that a dry run before reports the
    /// same and changes nothing.
    fn reconcile(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let run =
            |mode| self.with_context(|context| reconcile(context, mode, Path::new(OTHER_RUNTIME)));
        let before = self.files();
        let dry_run = run(ReconcileMode::DryRun);
        assert_eq!(self.files(), before, "a dry run changes nothing");
        let report = run(ReconcileMode::Remove);
        assert_eq!(dry_run, report);
        assert_eq!(report.failed, []);
        let kinds = |items: &[ItemReport]| items.iter().map(|it| it.item.kind()).collect();
        (kinds(&report.removed), kinds(&report.left))
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
fn a_node_without_state_stays_empty() {
    let node = TestNode::new();
    assert_eq!(node.reconcile(), (vec![], vec![]));
    assert_eq!(node.files(), <[PathBuf; 0]>::default());
}

#[test]
fn after_a_boot_volumes_stay_staged_and_users_are_removed() {
    let node = TestNode::new();
    let [target, other] = ["a", "b"].map(|pod| node.stage(pod));
    for volume in [&target, &other] {
        node.add_user(volume, ended_process());
    }
    node.write_sandbox("s", "a", ended_process());
    node.reboot();
    let removed = vec![
        "sandbox", "user", "record", "user", "record", "owner", "owner",
    ];
    assert_eq!(node.reconcile(), (removed, vec![]));
    assert_eq!(node.reconcile(), (vec![], vec![]));
    let mut files: Vec<_> = fs::read_dir(node.entry(&target))
        .unwrap()
        .map(|file| file.unwrap().file_name())
        .collect();
    files.sort();
    assert_eq!(files, ["mountInfo.json", "target.json"]);
}

#[test]
fn live_users_are_not_reported() {
    let node = TestNode::new();
    let target = node.stage("a");
    node.add_user(&target, Process::current().unwrap());
    node.write_sandbox("s", "a", Process::current().unwrap());
    fs::remove_dir_all(node.root.join("kubelet")).unwrap();
    let before = node.files();
    assert_eq!(node.reconcile(), (vec![], vec![]));
    assert_eq!(node.files(), before);
}

#[test]
fn a_volume_without_its_target_is_removed_with_its_owners() {
    let node = TestNode::new();
    let target = node.stage("a");
    let other = node.stage("b");
    node.add_user(&target, ended_process());
    fs::remove_dir_all(node.root.join("kubelet/pods/a")).unwrap();
    node.write_sandbox("s", "a", Process::current().unwrap());
    assert_eq!(
        node.reconcile(),
        (vec!["user", "record"], vec![]),
        "its pod is alive"
    );
    let unreadable = node.config.state_dir.join("sandboxes/t.json");
    fs::write(&unreadable, "{").unwrap();
    fs::remove_file(unreadable.with_file_name("s.json")).unwrap();
    node.write_sandbox("s", "a", ended_process());
    assert_eq!(
        node.reconcile(),
        (vec!["sandbox"], vec!["sandbox", "volume"]),
        "its pod may be alive"
    );
    fs::remove_file(unreadable).unwrap();
    assert_eq!(node.volume_locks().len(), 1);
    assert_eq!(node.reconcile(), (vec!["volume", "owner"], vec![]));
    assert_eq!(node.volume_locks(), <[PathBuf; 0]>::default());
    assert_eq!(node.reconcile(), (vec![], vec![]));
    let left = node.with_context(|context| context.crust.survey()).unwrap();
    assert_eq!(
        left.iter()
            .map(|it| it.target().unwrap())
            .collect::<Vec<_>>(),
        [&other]
    );
    assert_eq!(
        node.with_context(|context| context.state.backings_with_volumes())
            .unwrap(),
        []
    );
}

#[test]
fn locked_volumes_and_unreadable_records_are_left() {
    let node = TestNode::new();
    let (held, damaged, nameless) = (node.stage("a"), node.stage("b"), node.stage("c"));
    node.add_user(&held, ended_process());
    fs::write(node.entry(&damaged).join("runcrust.json"), "{").unwrap();
    let info = r#"{"device":"/dev/x","volume-type":"block","fstype":"ext4"}"#;
    fs::write(node.entry(&nameless).join("mountInfo.json"), info).unwrap();
    let lock = LockName::Volume(held.digest());
    let lock = node
        .with_context(|context| context.state.lock(lock, context.deadline))
        .unwrap();
    assert_eq!(node.reconcile(), (vec![], vec!["volume", "volume"]));
    drop(lock);
    assert_eq!(node.reconcile(), (vec!["user", "record"], vec!["volume"]));
}

/// A process that writes both records of a volume may be killed between the two.
#[test]
fn the_copy_of_a_record_in_use_is_brought_up_to_date() {
    let node = TestNode::with_linked_pod("a");
    let target = node.stage("a");
    node.add_user(&target, Process::current().unwrap());
    let entries = [target.clone(), target.resolved().unwrap()].map(|path| node.entry(&path));
    let [authoritative, copy] = entries.map(|entry| entry.join("runcrust.json"));
    let text = fs::read_to_string(&authoritative).unwrap();
    assert_eq!(fs::read_to_string(&copy).unwrap(), text);
    assert_eq!(node.reconcile(), (vec![], vec![]));
    let (_, users) = text.split_once("\"users\":[").unwrap();
    let user = users.strip_suffix("]}").unwrap();
    let [own, parent] = [Process::current(), Process::from_pid(parent())].map(Result::unwrap);
    let ended = user.replace("\"c\"", "\"d\"");
    let ended = ended.replace(&own.boot_id, "another");
    for users in [&*format!("{user},{ended}"), ""] {
        fs::write(&copy, text.replace(user, users)).unwrap();
        assert_eq!(node.reconcile(), (vec!["copy"], vec![]));
        for file in [&authoritative, &copy] {
            assert_eq!(fs::read_to_string(file).unwrap(), text);
        }
        assert_eq!(node.reconcile(), (vec![], vec![]));
    }
    let process_json = |it: &Process| format!("\"pid\":{},\"startTime\":{}", it.pid, it.start_time);
    let stray = text.replace(&process_json(&own), &process_json(&parent));
    assert_ne!(stray, text);
    fs::write(&copy, stray).unwrap();
    assert_eq!(node.reconcile(), (vec![], vec!["record"]));
}

#[test]
fn a_half_staged_volume_is_removed_with_its_lock() {
    let node = TestNode::with_linked_pod("a");
    let target = node.stage("a");
    fs::remove_dir_all(node.entry(&target)).unwrap();
    assert_eq!(node.reconcile(), (vec!["half"], vec![]));
    assert_eq!(node.volume_locks(), <[PathBuf; 0]>::default());
}

#[test]
fn a_lock_that_outlived_its_volume_is_removed_unless_held() {
    let node = TestNode::new();
    let target = node.stage("a");
    let lock = |target: &TargetPath| {
        let name = LockName::Volume(target.digest());
        node.with_context(|context| context.state.lock(name, context.deadline))
            .unwrap()
    };
    drop(lock(&target));
    assert_eq!(node.reconcile(), (vec![], vec![]));
    node.with_context(|context| context.crust.unstage(&target))
        .unwrap();
    let held = lock(&target);
    assert_eq!(node.reconcile(), (vec![], vec![]));
    drop(held);
    assert_eq!(node.reconcile(), (vec!["leftover"], vec![]));
    assert_eq!(node.volume_locks(), <[PathBuf; 0]>::default());
    let refused = node.with_context(|context| super::super::lock(context, &target));
    refused.unwrap_err();
    assert_eq!(
        node.volume_locks(),
        <[PathBuf; 0]>::default(),
        "none is created"
    );
}

#[test]
fn a_lock_that_cannot_be_taken_is_left() {
    let node = TestNode::new();
    let target = node.stage("a");
    let name = LockName::Volume(target.digest());
    drop(
        node.with_context(|context| context.state.lock(name, context.deadline))
            .unwrap(),
    );
    node.with_context(|context| context.crust.unstage(&target))
        .unwrap();
    let [lock] = &node.volume_locks()[..] else {
        panic!("one lock");
    };
    fs::set_permissions(lock, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(node.reconcile(), (vec![], vec!["leftover"]));
    assert!(lock.exists());
}

#[test]
fn more_items_than_open_files_are_reconciled() {
    let node = TestNode::new();
    let limit = getrlimit(Resource::Nofile);
    let current = Some(128);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    node.stage("a");
    for number in 0..2000 {
        let name = format!(".7.{}.{number:x}.0", u32::MAX);
        fs::write(node.config.crust_root.join(name), "{").unwrap();
    }
    for number in 0..300 {
        let (target, info) = node.create_target(&format!("b-{number}"));
        fs::create_dir(node.entry(&target)).unwrap();
        fs::write(node.entry(&target).join("mountInfo.json"), info.to_json()).unwrap();
    }
    let (removed, left) = node.reconcile();
    assert_eq!((removed, left), (vec!["leftover"; 2000], vec![]));
}

#[test]
fn unreadable_entries_and_directories_are_reported() {
    let node = TestNode::new();
    let target = node.stage("a");
    let link = "0".repeat(64);
    std::os::unix::fs::symlink("elsewhere", node.config.crust_root.join(&link)).unwrap();
    let owners = node.config.state_dir.join("owners");
    fs::create_dir_all(&node.config.state_dir).unwrap();
    fs::set_permissions(
        &node.config.state_dir,
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .unwrap();
    fs::write(&owners, "").unwrap();
    let report = node.with_context(|context| {
        reconcile(context, ReconcileMode::Remove, Path::new(OTHER_RUNTIME))
    });
    let items = |reports: &[ItemReport]| -> Vec<StateItem> {
        reports.iter().map(|it| it.item.clone()).collect()
    };
    let entry = StateItem::Entry(node.config.crust_root.join(&link));
    assert_eq!(items(&report.left), [entry], "{report:?}");
    assert_eq!(
        items(&report.failed),
        [StateItem::Directory(owners)],
        "{report:?}"
    );
    assert_eq!(report.removed, []);
    drop(target);
}

/// A bundle or sandbox of the same name may be created between the decision and the removal.
#[test]
fn a_record_that_was_written_again_meanwhile_stays() {
    let node = TestNode::new();
    node.write_sandbox("s", "a", ended_process());
    let before = node.with_context(|context| context.state.sandbox_records());
    node.write_sandbox("s", "b", Process::current().unwrap());
    let config = node.root.join("config.json");
    let bundle = BundleRecord {
        version: Version,
        config: config.clone(),
        containers: Containers::default(),
        sources: Vec::new(),
        added: Vec::new(),
        removed: Vec::new(),
        location: None,
        has_renamed_keys: false,
    };
    let name = BundleRecord::record_name(&config);
    node.with_context(|context| context.state.write_bundle(name, &bundle))
        .unwrap();
    node.with_context(|context| {
        let mut pass = ReconcilePass::new(context, ReconcileMode::Remove);
        let bundles = context.state.bundle_records().unwrap();
        fs::write(&config, "{}").unwrap();
        pass.sandboxes(before);
        pass.bundle_records(bundles);
        assert_eq!(pass.report, ReconcileReport::default());
        assert!(context.state.bundle(name).unwrap().is_some());
        let sandbox = context.state.sandbox("s").unwrap().unwrap();
        assert_eq!(sandbox.pod_uid, "b");
        fs::remove_file(&config).unwrap();
        pass.bundles();
        assert_eq!(pass.report.removed.len(), 1);
        assert!(context.state.bundle(name).unwrap().is_none());
    });
}

#[test]
fn an_owner_whose_volume_was_staged_meanwhile_stays() {
    let node = TestNode::new();
    let target = node.stage("a");
    node.add_user(&target, ended_process());
    let (pods, gone) = (Pods::default(), node.config.crust_root.join("gone"));
    node.with_context(|context| {
        let mut pass = ReconcilePass::new(context, ReconcileMode::Remove);
        let owners = pass.owners();
        fs::rename(node.entry(&target), &gone).unwrap();
        let decisions = pass.decide_owners(&owners, &pods);
        assert_eq!(decisions.len(), 1);
        fs::rename(&gone, node.entry(&target)).unwrap();
        pass.settle_owners(decisions);
        assert_eq!(pass.report, ReconcileReport::default());
        // An owner also stays if its entry can't be read.
        fs::rename(node.entry(&target), &gone).unwrap();
        let decisions = pass.decide_owners(&owners, &pods);
        std::os::unix::fs::symlink(&gone, node.entry(&target)).unwrap();
        pass.settle_owners(decisions);
        let [left] = &pass.report.left[..] else {
            panic!("{:?}", pass.report);
        };
        assert_eq!(left.item.kind(), "owner");
        assert!(left.reason.contains("is a link"), "{left:?}");
        assert_eq!(pass.report.removed, []);
    });
}

/// A create takes ownership of its device while volumes are checked, which replaces the list of an earlier boot.
#[test]
fn an_owner_listed_in_place_of_an_earlier_boots_stays() {
    let node = TestNode::new();
    let [target, other] = ["a", "b"].map(|pod| node.stage(pod));
    for volume in [&target, &other] {
        node.add_user(volume, ended_process());
    }
    node.reboot();
    let device = crust_blockfs::DeviceNumber::new(259, 9999).into();
    node.with_context(|context| {
        let mut pass = ReconcilePass::new(context, ReconcileMode::Remove);
        let (owners, pods) = (pass.owners(), Pods::default());
        let decisions = pass.decide_owners(&owners, &pods);
        assert_eq!(decisions.len(), 2);
        context.state.add_volume(device, &target).unwrap();
        pass.settle_owners(decisions);
        assert_eq!(pass.report, ReconcileReport::default());
        assert_eq!(context.state.volumes_on(device).unwrap(), [target]);
    });
}

#[test]
fn a_runtime_cli_is_compared_by_file_and_not_by_path() {
    let node = TestNode::new();
    let target = node.stage("a");
    let [runtime, alias, other] = ["runtime", "alias", "other"].map(|name| node.root.join(name));
    for program in [&runtime, &other] {
        fs::write(program, "").unwrap();
    }
    std::os::unix::fs::symlink(&runtime, &alias).unwrap();
    let counts = |cli: &Path| {
        let report = node.with_context(|context| {
            let volume = context.crust.volume(&target).unwrap().unwrap();
            volume.write_runtime_cli(cli).unwrap();
            reconcile(context, ReconcileMode::DryRun, &runtime)
        });
        (report.removed.len(), report.left.len())
    };
    assert_eq!(counts(&runtime), (1, 0));
    assert_eq!(counts(&alias), (1, 0));
    assert_eq!(counts(&other), (0, 1));
    assert_eq!(counts(&node.root.join("none")), (0, 1));
}

/// A process that mounts a device for the first time must find the lock taken and not the device in use.
#[test]
fn only_a_removing_pass_creates_locks() {
    let node = TestNode::new();
    let name = LockName::Device("259:9999".parse().unwrap());
    node.with_context(|context| {
        let lock = |mode: ReconcileMode| mode.lock(context.state, name);
        assert!(lock(ReconcileMode::DryRun).unwrap().is_none());
        let held = lock(ReconcileMode::Remove).unwrap();
        assert!(held.is_some());
        for mode in [ReconcileMode::DryRun, ReconcileMode::Remove] {
            assert!(matches!(lock(mode), Err(LockError::Held { .. })));
        }
    });
}

/// If such locks were kept, a node that attaches and detaches disks for months would fill `/run`.
#[test]
fn the_lock_of_a_device_that_is_gone_is_removed() {
    let node = TestNode::new();
    let present = fs::read_dir("/sys/dev/block").unwrap().flatten();
    let present = present.map(|entry| entry.file_name().into_string().unwrap());
    let present = present.min().expect("a block device");
    let name = |number: &str| LockName::Device(number.parse().unwrap());
    let names = || {
        let locks = node.all_locks();
        locks.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    node.with_context(|context| {
        let lock = |number: &str| context.state.lock(name(number), Deadline::never()).unwrap();
        drop(lock(&present));
        let held = lock("259:9999");
        for mode in [ReconcileMode::DryRun, ReconcileMode::Remove] {
            let report = reconcile(context, mode, Path::new(OTHER_RUNTIME));
            assert_eq!(report, ReconcileReport::default(), "it is held");
        }
        drop(held);
    });
    assert_eq!(names().len(), 2);
    assert_eq!(node.reconcile(), (vec!["leftover"], vec![]));
    assert_eq!(names(), [name(&present)]);
    assert_eq!(node.reconcile(), (vec![], vec![]));
}

#[test]
fn items_after_the_deadline_are_left() {
    let node = TestNode::new();
    let target = node.stage("a");
    node.add_user(&target, ended_process());
    let report = node.with_context(|context| {
        let name = LockName::Device("259:9999".parse().unwrap());
        drop(context.state.lock(name, context.deadline).unwrap());
        let deadline = Deadline::after(Duration::ZERO);
        reconcile(
            &Context {
                deadline,
                ..*context
            },
            ReconcileMode::Remove,
            Path::new(OTHER_RUNTIME),
        )
    });
    let [volume, locks] = &report.left[..] else {
        panic!("{report:?}");
    };
    assert_eq!(volume.item, StateItem::Volume(target));
    let directory = node.config.state_dir.join("locks");
    assert_eq!(locks.item, StateItem::Directory(directory));
    for ItemReport { reason, .. } in [volume, locks] {
        assert!(reason.contains("before the deadline"), "{reason}");
    }
}

#[test]
fn an_unindexed_volume_is_indexed_by_a_stage_or_a_pass() {
    type IndexOperation = fn(&Context<'_>, &TargetPath) -> bool;
    let by_stage: IndexOperation =
        |context, target| target_index::add(context, &target.look_up(), context.deadline).is_ok();
    let without_waiting: IndexOperation =
        |context, target| target_index::add_without_waiting(context, &target.look_up()).is_ok();
    let by_pass: IndexOperation = |context, _| {
        let report = reconcile(context, ReconcileMode::Remove, Path::new(OTHER_RUNTIME));
        report.into_result().is_ok()
    };
    let by_dry_run: IndexOperation = |context, _| {
        let report = reconcile(context, ReconcileMode::DryRun, Path::new(OTHER_RUNTIME));
        report.into_result().is_ok()
    };
    for (operation, succeeds, has_index) in [
        (by_stage, true, true),
        (without_waiting, false, false),
        (by_pass, true, true),
        (by_dry_run, true, false),
    ] {
        let node = TestNode::new();
        let (given, real) = (node.root.join("link"), node.root.join("real"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &given).unwrap();
        let (_, info) = node.create_target("a");
        let staged = TargetPath::new(given.join("staged")).unwrap();
        let info = MountInfo {
            target_path: Some(staged.clone()),
            ..info
        };
        fs::create_dir(&staged).unwrap();
        node.with_context(|context| context.crust.stage(&staged, &info))
            .unwrap();
        let other = TargetPath::new(node.root.join("other")).unwrap();
        assert_eq!(
            node.with_context(|context| operation(context, &other)),
            succeeds
        );
        let index = crust_state::TargetIndex::read(&node.config.state_dir).unwrap();
        assert_eq!(index.is_some(), has_index);
        let indexed: Vec<TargetPath> = index
            .iter()
            .flat_map(crust_state::TargetIndex::non_csi_paths)
            .collect();
        for target in [&staged, &TargetPath::new(real.join("staged")).unwrap()] {
            assert_eq!(indexed.contains(target), has_index, "{target}");
        }
    }
}

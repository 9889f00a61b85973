use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::entry::RESIZE_FILE;
use super::*;
use crate::Process;
use crate::files::tests::limit_open_files;
use crate::record::{RECORD_FILE, Superblock, User, UserKind, Version};
use crust_blockfs::resize::SizeLimits;

struct TestNode {
    crust: CrustDirectory,
    root: PathBuf,
    _guard: tempfile::TempDir,
}

impl TestNode {
    fn new() -> Self {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/pods")).unwrap();
        symlink("data", root.join("kubelet")).unwrap();
        let config = Config {
            crust_root: root.join("crust"),
            ..Config::default()
        };
        Self {
            crust: CrustDirectory::new(&config),
            root,
            _guard: guard,
        }
    }

    fn target(&self, path: &str) -> TargetPath {
        TargetPath::new(self.root.join(path)).unwrap()
    }

    fn stage(&self, path: &str) -> TargetPath {
        let target = self.target(path);
        self.crust.stage(&target, &info(&target)).unwrap();
        target
    }

    fn file(&self, target: &TargetPath, name: &str) -> PathBuf {
        self.root
            .join("crust")
            .join(target.digest().to_string())
            .join(name)
    }
}

fn info(target: &TargetPath) -> MountInfo {
    let text = br#"{"volume-type":"block","device":"/dev/sdf","fstype":"ext4"}"#;
    MountInfo {
        target_path: Some(target.clone()),
        ..MountInfo::parse(text).unwrap()
    }
}

pub(super) fn record() -> VolumeRecord {
    let user = User {
        kind: UserKind::Sandbox,
        id: "s".into(),
        sandbox: "s".into(),
        pod_uid: "u".into(),
        process: Process {
            pid: 1,
            start_time: 1,
            boot_id: "b".into(),
            pid_namespace: None,
        },
        mounts: vec![],
        other_mounts: Vec::new(),
    };
    VolumeRecord {
        version: Version,
        backing: "7:3".parse().unwrap(),
        superblocks: Vec::new(),
        refused_fs_group: None,
        superblock: Superblock {
            fstype: "ext4".into(),
            options: vec![],
            read_only: false,
        },
        exclusive: false,
        prepared_for: vec![],
        users: vec![user],
    }
}

#[test]
fn a_staged_volume_is_found_and_an_unstaged_one_is_not() {
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    let volume = node.crust.volume(&target).unwrap().unwrap();
    assert_eq!(volume.info(), &info(&target));
    assert!(
        node.crust
            .volume(&node.target("data/pods/b"))
            .unwrap()
            .is_none()
    );
    node.crust.unstage(&target).unwrap();
    node.crust.unstage(&target).unwrap();
    assert!(node.crust.volume(&target).unwrap().is_none());
    assert_eq!(
        std::fs::read_dir(node.root.join("crust")).unwrap().count(),
        0
    );
}

#[test]
fn the_staged_digests_have_all_paths_of_each_volume() {
    let node = TestNode::new();
    let empty: [usize; 0] = [];
    let digests = node.crust.staged_digests().unwrap();
    assert_eq!(digests.staged_prefix_lengths(&node.target("x")), empty);
    node.stage("kubelet/pods/a");
    node.stage("data/pods/a/b//c");
    std::fs::create_dir(node.root.join("crust/.not-an-entry")).unwrap();
    let digests = node.crust.staged_digests().unwrap();
    for path in ["data/pods/a/b/c/d/e", "kubelet/pods/a", "data/pods", "data"] {
        let path = node.target(path);
        let is_staged = |(at, _): &(TargetPath, &Path)| node.crust.volume(at).unwrap().is_some();
        let mut expected: Vec<usize> = path
            .ancestors()
            .filter(is_staged)
            .map(|(at, _)| at.length())
            .collect();
        expected.reverse();
        assert_eq!(digests.staged_prefix_lengths(&path), expected, "{path}");
    }
    let deep = node.target("data/pods/a/b/c/d/e");
    assert_eq!(digests.staged_prefix_lengths(&deep).len(), 2);
}

#[test]
fn a_volume_behind_a_link_is_found_by_both_of_its_paths() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    for path in [&given, &resolved] {
        let volume = node.crust.volume(path).unwrap().unwrap();
        assert_eq!(volume.target(), &given);
    }
    let volume = node.crust.volume(&resolved).unwrap().unwrap();
    volume.write_record(&record()).unwrap();
    volume
        .write_runtime_cli(Path::new("/usr/sbin/runcrust"))
        .unwrap();
    for path in [&given, &resolved] {
        let line = std::fs::read_to_string(node.file(path, RUNTIME_CLI)).unwrap();
        assert_eq!(line, "/usr/sbin/runcrust\n");
        assert_eq!(
            node.crust.volume(path).unwrap().unwrap().record().unwrap(),
            Some(record())
        );
    }
    volume
        .write_record(&VolumeRecord {
            users: vec![],
            ..record()
        })
        .unwrap();
    for path in [&given, &resolved] {
        assert!(!node.file(path, RUNTIME_CLI).exists() && !node.file(path, RECORD_FILE).exists());
    }
    node.crust.unstage(&given).unwrap();
    assert_eq!(
        std::fs::read_dir(node.root.join("crust")).unwrap().count(),
        0
    );
}

#[test]
fn a_half_staged_volume_is_refused_until_it_is_staged_again() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    std::fs::remove_dir_all(node.file(&given, "")).unwrap();
    let error = node.crust.volume(&resolved).unwrap_err().to_string();
    assert!(
        error.contains("half staged") && error.contains(&given.digest().to_string()),
        "{error}"
    );
    node.stage("kubelet/pods/a");
    assert!(node.crust.volume(&resolved).unwrap().is_some());
    std::fs::remove_dir_all(node.file(&resolved, "")).unwrap();
    let error = node.crust.volume(&given).unwrap_err().to_string();
    assert!(
        error.contains("half staged") && error.contains(&resolved.digest().to_string()),
        "{error}"
    );
}

#[test]
fn a_half_replaced_volume_keeps_its_previous_metadata() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    let before = info(&given);
    let after = MountInfo {
        read_only: !before.read_only,
        ..before.clone()
    };
    std::fs::write(node.file(&resolved, MOUNT_INFO), after.to_json()).unwrap();
    for path in [&given, &resolved] {
        let volume = node.crust.volume(path).unwrap().unwrap();
        assert_eq!((volume.target(), volume.info()), (&given, &before));
    }
    for info in [&before, &after] {
        node.crust.stage(&given, info).unwrap();
        for path in [&given, &resolved] {
            assert_eq!(node.crust.volume(path).unwrap().unwrap().info(), info);
            let file = std::fs::read(node.file(path, MOUNT_INFO)).unwrap();
            assert_eq!(file, info.to_json());
        }
    }
}

#[test]
fn an_entry_with_the_target_path_of_another_volume_is_refused() {
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    let other = node.target("data/pods/b");
    std::fs::write(node.file(&target, MOUNT_INFO), info(&other).to_json()).unwrap();
    let error = node.crust.volume(&target).unwrap_err().to_string();
    assert!(
        error.contains("`metadata.targetPath`") && error.contains("data/pods/b"),
        "{error}"
    );
}

#[test]
fn an_entry_without_mount_info_is_refused() {
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    std::fs::remove_file(node.file(&target, MOUNT_INFO)).unwrap();
    let error = node.crust.volume(&target).unwrap_err().to_string();
    assert!(
        error.contains("mountInfo.json is missing; hint:"),
        "{error}"
    );
}

#[test]
fn staging_again_does_not_replace_the_same_metadata() {
    use std::os::unix::fs::MetadataExt;
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    let inode = || {
        std::fs::metadata(node.file(&target, MOUNT_INFO))
            .unwrap()
            .ino()
    };
    let before = inode();
    node.stage("data/pods/a");
    assert_eq!(inode(), before);
    let changed = MountInfo {
        read_only: true,
        ..info(&target)
    };
    node.crust.stage(&target, &changed).unwrap();
    assert_eq!(
        node.crust.volume(&target).unwrap().unwrap().info(),
        &changed
    );
}

#[test]
fn a_crust_directory_that_is_created_later_is_found() {
    let node = TestNode::new();
    let target = node.target("data/pods/a");
    assert!(!node.crust.may_hold_volumes().unwrap());
    assert!(node.crust.volume(&target).unwrap().is_none());
    node.crust.unstage(&target).unwrap();
    assert!(
        !node.root.join("crust").exists(),
        "a lookup creates nothing"
    );
    node.stage("data/pods/a");
    assert!(node.crust.may_hold_volumes().unwrap());
    assert!(node.crust.volume(&target).unwrap().is_some());
}

/// A file or a link in the place of an entry is an error. It doesn't count as a missing entry.
#[test]
fn an_entry_that_is_not_a_directory_is_an_error() {
    let node = TestNode::new();
    let target = node.target("data/pods/a");
    node.stage("data/pods/a");
    node.crust.unstage(&target).unwrap();
    assert!(!node.crust.may_hold_volumes().unwrap());
    let entry = node.root.join("crust").join(target.digest().to_string());
    std::fs::write(&entry, "").unwrap();
    assert!(node.crust.may_hold_volumes().unwrap());
    std::fs::remove_file(&entry).unwrap();
    symlink("elsewhere", &entry).unwrap();
    assert!(node.crust.may_hold_volumes().unwrap());
    assert!(node.crust.volume(&target).is_err());
}

#[test]
fn a_pending_resize_is_in_both_entries_until_it_is_cleared() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    let volume = node.crust.volume(&resolved).unwrap().unwrap();
    assert_eq!(volume.pending_resize().unwrap(), None);
    let limits = |min| SizeLimits::new(min, 0).unwrap();
    volume.record_resize(limits(1)).unwrap();
    volume.record_resize(limits(2)).unwrap();
    for path in [&given, &resolved] {
        let volume = node.crust.volume(path).unwrap().unwrap();
        assert_eq!(volume.pending_resize().unwrap(), Some(limits(2)));
        assert!(node.file(path, RESIZE_FILE).exists());
    }
    node.stage("kubelet/pods/a");
    assert_eq!(volume.pending_resize().unwrap(), Some(limits(2)));
    volume.clear_resize().unwrap();
    for path in [&given, &resolved] {
        assert!(!node.file(path, RESIZE_FILE).exists());
    }
}

/// Returns the metadata of [`info`], but read-only.
fn other_options(target: &TargetPath) -> MountInfo {
    MountInfo {
        read_only: true,
        ..info(target)
    }
}

fn other_device(target: &TargetPath) -> MountInfo {
    MountInfo {
        device: "/dev/sdg".into(),
        ..info(target)
    }
}

#[test]
fn a_pending_resize_is_kept_for_the_same_device_only() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    let pending = || node.crust.volume(&given).unwrap().unwrap().pending_resize();
    let limits = SizeLimits::new(1, 0).unwrap();
    let volume = node.crust.volume(&given).unwrap().unwrap();
    volume.record_resize(limits).unwrap();
    node.crust.stage(&given, &other_options(&given)).unwrap();
    assert_eq!(pending().unwrap(), Some(limits));
    node.crust.stage(&given, &other_device(&given)).unwrap();
    assert_eq!(pending().unwrap(), None);
    for path in [&given, &resolved] {
        assert!(!node.file(path, RESIZE_FILE).exists());
    }
}

#[test]
fn a_killed_stage_of_another_device_keeps_the_pending_resize() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let limits = SizeLimits::new(1, 0).unwrap();
    let volume = node.crust.volume(&given).unwrap().unwrap();
    volume.record_resize(limits).unwrap();
    let pending = || node.crust.volume(&given).unwrap().unwrap().pending_resize();
    let changed = other_device(&given);
    // The entries are written, but the stage isn't committed.
    let killed = node.crust.begin_stage(&given, &changed).unwrap();
    assert_eq!(
        pending().unwrap(),
        None,
        "it was requested for the other device"
    );
    killed.roll_back().unwrap();
    assert_eq!(pending().unwrap(), Some(limits));
    let _ = node.crust.begin_stage(&given, &changed).unwrap();
    node.crust.stage(&given, &changed).unwrap();
    node.crust.stage(&given, &info(&given)).unwrap();
    assert_eq!(pending().unwrap(), None, "the repeated stage removed it");
}

#[test]
fn a_rolled_back_stage_leaves_the_previous_entries() {
    let node = TestNode::new();
    let given = node.target("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    let content = |path: &TargetPath| std::fs::read(node.file(path, MOUNT_INFO)).ok();
    let entries = || std::fs::read_dir(node.root.join("crust")).unwrap().count();
    let stage_and_roll_back = |info: &MountInfo| {
        let staging = node.crust.begin_stage(&given, info).unwrap();
        assert_eq!(node.crust.volume(&given).unwrap().unwrap().info(), info);
        staging.roll_back().unwrap();
    };
    stage_and_roll_back(&info(&given));
    assert_eq!(entries(), 0);
    // A half-staged volume, as a crash leaves it.
    node.stage("kubelet/pods/a");
    std::fs::remove_dir_all(node.file(&given, "")).unwrap();
    stage_and_roll_back(&other_options(&given));
    assert_eq!(content(&given), None);
    assert_eq!(content(&resolved), Some(info(&given).to_json()));
    // Entries that can't be parsed, or lack their file.
    node.stage("kubelet/pods/a");
    std::fs::write(node.file(&given, MOUNT_INFO), "{").unwrap();
    std::fs::remove_file(node.file(&resolved, MOUNT_INFO)).unwrap();
    stage_and_roll_back(&other_options(&given));
    assert_eq!(content(&given).unwrap(), b"{");
    assert!(content(&resolved).is_none() && node.file(&resolved, "").exists());
    node.stage("kubelet/pods/a");
    stage_and_roll_back(&info(&given));
    for path in [&given, &resolved] {
        assert_eq!(content(path), Some(info(&given).to_json()));
    }
}

#[test]
fn a_stage_that_fails_half_way_restores_the_previous_entries() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    std::fs::remove_file(node.file(&given, MOUNT_INFO)).unwrap();
    symlink("elsewhere", node.file(&given, MOUNT_INFO)).unwrap();
    let changed = other_options(&given);
    let error = node.crust.stage(&given, &changed).unwrap_err().to_string();
    assert!(error.contains("is a symbolic link"), "{error}");
    let content = std::fs::read(node.file(&resolved, MOUNT_INFO)).unwrap();
    assert_eq!(content, info(&given).to_json());
}

/// Surveys the node. Returns each volume's target path, its completeness and its number of readable entries.
fn survey_summary(node: &TestNode) -> Vec<(Option<TargetPath>, Completeness, usize)> {
    let found = node.crust.survey().unwrap();
    let summary = |found: &SurveyedVolume| {
        (
            found.target().cloned(),
            found.completeness.clone(),
            found.entry_paths().len(),
        )
    };
    let mut summaries: Vec<_> = found.iter().map(summary).collect();
    summaries.sort_by_key(|(target, _, entries)| (target.clone(), *entries));
    summaries
}

#[test]
fn a_survey_groups_the_entries_of_each_volume() {
    let node = TestNode::new();
    assert_eq!(survey_summary(&node), []);
    assert!(
        !node.root.join("crust").exists(),
        "a survey creates nothing"
    );
    let plain = node.stage("data/pods/b");
    let given = node.stage("kubelet/pods/a");
    let resolved = node.target("data/pods/a");
    let (with_one_entry, with_two_entries) = (
        (Some(plain), Completeness::Complete, 1),
        Some(given.clone()),
    );
    assert_eq!(
        survey_summary(&node),
        [
            with_one_entry.clone(),
            (with_two_entries.clone(), Completeness::Complete, 2)
        ]
    );
    std::fs::remove_dir_all(node.file(&resolved, "")).unwrap();
    let missing = node.root.join("crust").join(resolved.digest().to_string());
    assert_eq!(
        survey_summary(&node),
        [
            with_one_entry.clone(),
            (
                with_two_entries.clone(),
                Completeness::ResolvedEntryMissing(missing),
                1
            )
        ]
    );
    node.stage("kubelet/pods/a");
    std::fs::remove_dir_all(node.file(&given, "")).unwrap();
    assert_eq!(
        survey_summary(&node),
        [
            with_one_entry.clone(),
            (with_two_entries, Completeness::TargetEntryMissing, 1)
        ]
    );
    let half = &node.crust.survey().unwrap();
    let half = half
        .iter()
        .find(|found| found.completeness == Completeness::TargetEntryMissing)
        .unwrap();
    node.stage("kubelet/pods/a");
    let again = node.crust.survey_again(half).unwrap().unwrap();
    assert_eq!(again.completeness, Completeness::Complete, "staged again");
    node.crust.remove(&again).unwrap();
    assert!(node.crust.survey_again(half).unwrap().is_none());
    assert_eq!(survey_summary(&node), [with_one_entry]);
}

#[test]
fn the_record_in_the_first_entry_is_used() {
    let node = TestNode::new();
    let given = node.stage("kubelet/pods/a");
    let volume = node.crust.volume(&given).unwrap().unwrap();
    volume.write_record(&record()).unwrap();
    volume.write_runtime_cli(Path::new("/cli")).unwrap();
    let found = || node.crust.survey().unwrap().remove(0);
    assert_eq!(found().record().unwrap(), Some(record()));
    assert_eq!(found().other_records().unwrap(), []);
    // The state after a release that was killed half way.
    std::fs::remove_file(node.file(&given, RUNTIME_CLI)).unwrap();
    std::fs::remove_file(node.file(&given, RECORD_FILE)).unwrap();
    assert_eq!(found().record().unwrap(), None);
    assert_eq!(found().other_records().unwrap(), [record()]);
    assert_eq!(found().runtime_cli().unwrap(), Some("/cli".into()));
    found()
        .into_volume()
        .unwrap()
        .unwrap()
        .clear_users()
        .unwrap();
    assert_eq!(found().other_records().unwrap(), []);
    assert_eq!(found().runtime_cli().unwrap(), None);
}

#[test]
fn an_unreadable_entry_does_not_hide_others() {
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    let beside = node.target("data/pods/b").digest().to_string();
    symlink("elsewhere", node.root.join("crust").join(beside)).unwrap();
    let damaged = node.stage("kubelet/pods/c");
    std::fs::write(node.file(&damaged, MOUNT_INFO), "{").unwrap();
    let whole = (Some(target), Completeness::Complete, 1);
    let broken = |entries| (None, Completeness::Complete, entries);
    assert_eq!(survey_summary(&node), [broken(0), broken(1), whole]);
    let mut errors = Vec::new();
    node.crust
        .leftovers(&mut |found| errors.push(found.unwrap_err().to_string()));
    let [error] = &errors[..] else {
        panic!("{errors:?}");
    };
    assert!(error.contains("is a link or not a directory"), "{error}");
}

#[test]
fn there_may_be_more_entries_than_open_files() {
    const VOLUMES: usize = 300;
    let node = TestNode::new();
    limit_open_files();
    node.stage("data/pods/0");
    for number in 1..VOLUMES {
        let target = node.target(&format!("data/pods/{number}"));
        std::fs::create_dir(node.file(&target, "")).unwrap();
        std::fs::write(node.file(&target, MOUNT_INFO), info(&target).to_json()).unwrap();
    }
    let found = node.crust.survey().unwrap();
    assert_eq!(found.len(), VOLUMES);
    for found in found {
        assert!(found.target().is_some(), "{:?}", found.info);
        assert_eq!(found.record().unwrap(), None);
    }
    node.crust
        .leftovers(&mut |found| panic!("{:?}", found.map(|leftover| leftover.path())));
}

#[test]
fn an_unreadable_resize_is_an_error_until_replaced() {
    let node = TestNode::new();
    let target = node.stage("data/pods/a");
    let volume = node.crust.volume(&target).unwrap().unwrap();
    std::fs::write(node.file(&target, RESIZE_FILE), "{\"version\":2}").unwrap();
    let error = volume.pending_resize().unwrap_err().to_string();
    assert!(
        error.contains("resize.json: ") && error.contains("; hint:"),
        "{error}"
    );
    let limits = SizeLimits::new(1, 0).unwrap();
    volume.record_resize(limits).unwrap();
    assert_eq!(volume.pending_resize().unwrap(), Some(limits));
}

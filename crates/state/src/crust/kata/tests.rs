use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};

use super::*;
use crate::config::Config;
use crate::crust::tests::record;
use crate::crust::{CrustDirectory, RUNTIME_CLI};
use crate::info::MOUNT_INFO;
use crate::record::RECORD_FILE;

const INFO: &str = r#"{"volume-type":"block","device":"/dev/sdf","fstype":"ext4"}"#;

fn named(path: &[u8]) -> Option<String> {
    name(&TargetPath::new(OsStr::from_bytes(path)).unwrap())
}

#[test]
fn a_name_is_the_path_in_padded_base64url() {
    // The expected names are from Python's base64.urlsafe_b64encode.
    for (path, expected) in [
        (&b"/a"[..], "L2E="),
        (b"/ab", "L2Fi"),
        (b"/abc", "L2FiYw=="),
        (b"/?>~\xff\xfe", "Lz8-fv_-"),
        (
            b"/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pv-1/mount",
            "L3Zhci9saWIva3ViZWxldC9wb2RzL3Uvdm9sdW1lcy9rdWJlcm5ldGVzLmlvfmNzaS9wdi0xL21vdW50",
        ),
    ] {
        assert_eq!(named(path).unwrap(), expected, "{path:?}");
    }
}

#[test]
fn a_path_whose_name_would_be_too_long_has_no_entry() {
    let of_length = |length: usize| [&b"/"[..], &vec![b'x'; length - 1]].concat();
    assert_eq!(named(&of_length(189)).unwrap().len(), 252);
    assert_eq!(named(&of_length(190)), None);
    let node = TestNode::new(true);
    let long = TargetPath::new(OsStr::from_bytes(&of_length(300))).unwrap();
    assert!(node.staged.volume(&long).unwrap().is_none());
    assert_eq!(node.staged.record(&long).unwrap(), None);
    node.staged.unstage(&long).unwrap();
}

/// A node whose kubelet directory, `kubelet`, is a link to `data`.
struct TestNode {
    staged: CrustDirectory,
    root: PathBuf,
    _guard: tempfile::TempDir,
}

impl TestNode {
    fn new(kata_layout: bool) -> Self {
        let guard = tempfile::tempdir().unwrap();
        let root = guard.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("data/pods")).unwrap();
        symlink("data", root.join("kubelet")).unwrap();
        let config = Config {
            crust_root: root.join("crust"),
            kubelet_dirs: vec![root.join("kubelet")],
            kata_layout,
            ..Config::default()
        };
        Self {
            staged: CrustDirectory::with_kata_root(&config, &root.join("kata")),
            root,
            _guard: guard,
        }
    }

    fn target(&self, path: &str) -> TargetPath {
        TargetPath::new(self.root.join(path)).unwrap()
    }

    fn file(&self, target: &TargetPath, file: &str) -> PathBuf {
        let entry = self.root.join("kata").join(name(target).unwrap());
        entry.join(file)
    }

    /// Adds an entry as Kata's code does.
    fn add(&self, target: &TargetPath, info: &str) {
        let entry = self.file(target, "");
        let mut directories = std::fs::DirBuilder::new();
        directories
            .recursive(true)
            .mode(0o700)
            .create(&entry)
            .unwrap();
        std::fs::write(entry.join(MOUNT_INFO), info).unwrap();
    }
}

#[test]
fn a_volume_is_found_only_if_katas_layout_is_configured() {
    for kata_layout in [true, false] {
        let node = TestNode::new(kata_layout);
        let target = node.target("data/pods/a");
        assert!(!node.staged.may_hold_volumes().unwrap());
        node.add(&target, INFO);
        assert_eq!(node.staged.may_hold_volumes().unwrap(), kata_layout);
        let volume = node.staged.volume(&target).unwrap();
        assert_eq!(volume.is_some(), kata_layout);
        assert_eq!(node.staged.has_entry(&target).unwrap(), kata_layout);
        if let Some(volume) = volume {
            assert!(volume.is_kata_layout());
            assert_eq!(volume.target(), &target);
            assert_eq!(volume.info().target_path, Some(target));
            assert_eq!(volume.info().device, Path::new("/dev/sdf"));
        }
    }
}

#[test]
fn a_volume_behind_a_kubelet_link_is_found_by_both_paths() {
    let node = TestNode::new(true);
    let (given, resolved) = (node.target("kubelet/pods/a"), node.target("data/pods/a"));
    node.add(&given, INFO);
    for path in [&given, &resolved] {
        let volume = node.staged.volume(path).unwrap().unwrap();
        assert_eq!(volume.target(), &given);
        let digests = node.staged.staged_digests().unwrap();
        assert_eq!(digests.staged_prefix_lengths(path), [path.length()]);
    }
    node.staged.unstage(&resolved).unwrap();
    assert!(node.staged.volume(&given).unwrap().is_none());
    // A link that isn't a kubelet directory.
    symlink("data", node.root.join("other")).unwrap();
    node.add(&node.target("other/pods/b"), INFO);
    let other = node.staged.volume(&node.target("data/pods/b")).unwrap();
    assert!(other.is_none());
    // A link below the kubelet directory.
    symlink("a", node.root.join("data/pods/alias")).unwrap();
    std::fs::create_dir(node.root.join("data/pods/a")).unwrap();
    node.add(&node.target("kubelet/pods/alias"), INFO);
    let alias = node.staged.volume(&node.target("data/pods/alias")).unwrap();
    assert!(alias.is_none());
}

#[test]
fn our_files_are_beside_katas_and_are_removed_with_the_entry() {
    let node = TestNode::new(true);
    let target = node.target("kubelet/pods/a");
    node.add(&target, INFO);
    let volume = node.staged.volume(&target).unwrap().unwrap();
    volume.write_record(&record()).unwrap();
    volume
        .write_runtime_cli(Path::new("/usr/sbin/runcrust"))
        .unwrap();
    let cli = std::fs::read(node.file(&target, RUNTIME_CLI)).unwrap();
    assert_eq!(cli, b"/usr/sbin/runcrust\n");
    let resolved = node.target("data/pods/a");
    assert_eq!(node.staged.record(&resolved).unwrap(), Some(record()));
    volume.clear_users().unwrap();
    assert!(!node.file(&target, RECORD_FILE).exists());
    // Kata's runtime writes a file that is named after its sandbox.
    std::fs::write(node.file(&target, "0123abcd"), "").unwrap();
    assert!(node.staged.volume(&target).unwrap().is_some());
    node.staged.unstage(&target).unwrap();
    node.staged.unstage(&target).unwrap();
    let left = std::fs::read_dir(node.root.join("kata")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn an_entry_with_the_longest_name_can_be_removed() {
    let node = TestNode::new(true);
    let at = node.root.join("data/pods");
    let fill = 189 - at.as_os_str().len() - 1;
    let target = TargetPath::new(at.join("x".repeat(fill))).unwrap();
    assert_eq!(name(&target).unwrap().len(), 252);
    node.add(&target, INFO);
    assert!(node.staged.volume(&target).unwrap().is_some());
    node.staged.unstage(&target).unwrap();
    assert!(node.staged.volume(&target).unwrap().is_none());
}

#[test]
fn a_volume_in_both_layouts_has_to_have_the_same_metadata() {
    let node = TestNode::new(true);
    let target = node.target("kubelet/pods/a");
    let info = MountInfo {
        target_path: Some(target.clone()),
        read_only: true,
        ..MountInfo::parse(INFO.as_bytes()).unwrap()
    };
    node.add(&target, INFO);
    node.staged.stage(&target, &info).unwrap();
    for path in [&target, &node.target("data/pods/a")] {
        let volume = node.staged.volume(path).unwrap().unwrap();
        assert!(
            !volume.is_kata_layout(),
            "the crust directory takes precedence"
        );
        assert_eq!(volume.info(), &info);
    }
    for (from, to) in [
        ("sdf", "sdg"),
        ("ext4", "xfs"),
        ("}", r#","options":["noatime"]}"#),
    ] {
        node.add(&target, &INFO.replace(from, to));
        let error = node.staged.volume(&target).unwrap_err().to_string();
        let katas = node.file(&target, MOUNT_INFO).display().to_string();
        assert!(
            error.contains(&katas) && error.contains("different volumes"),
            "{error}"
        );
        let again = node.staged.stage(&target, &info).unwrap_err().to_string();
        assert_eq!(again, error);
    }
    node.staged.unstage(&target).unwrap();
    assert!(!node.staged.has_entry(&target).unwrap());
}

#[test]
fn an_entry_without_mount_info_is_refused() {
    let node = TestNode::new(true);
    let target = node.target("data/pods/a");
    node.add(&target, INFO);
    std::fs::remove_file(node.file(&target, MOUNT_INFO)).unwrap();
    let error = node.staged.volume(&target).unwrap_err().to_string();
    assert!(error.contains("mountInfo.json is missing"), "{error}");
    assert!(node.staged.has_entry(&target).unwrap());
}

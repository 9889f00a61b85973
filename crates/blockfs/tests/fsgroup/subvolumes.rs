//! Subvolumes of a btrfs. Each has its own `st_dev`, but all are on one mount. kubelet's walk, which uses paths, enters
//! them.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::fsgroup::FsGroupOutcome;
use crust_blockfs::options;

use crate::support::{
    Image, TestLoopDevice, TestMount, group_and_mode, in_mount_namespace, run, set_mode,
};
use crate::{GROUP, apply_and_count, try_apply};

/// A mounted btrfs with two nested subvolumes, and a file in its root and in each subvolume.
struct Volume {
    mount: OwnedFd,
    root: PathBuf,
    loop_device: TestLoopDevice,
    _image: Image,
}

impl Volume {
    fn new() -> Self {
        let image = Image::formatted("btrfs", &[]);
        let loop_device = image.attach();
        let mount = mount_detached(&MountRequest {
            device: &loop_device.facts(),
            fstype: "btrfs",
            options: &options::parse(&["rw"]).expect("the options are valid"),
            exclusive: true,
        });
        let mount = mount.expect("the volume is mounted");
        // A path for programs and functions that don't take a descriptor.
        let root = format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd());
        let volume = Self {
            mount,
            root: root.into(),
            loop_device,
            _image: image,
        };
        for directory in ["", "outer", "outer/inner"] {
            if !directory.is_empty() {
                btrfs(&["subvolume", "create"], &[volume.path(directory)]);
            }
            fs::write(volume.path(directory).join("file"), "").expect("a file");
            set_mode(&volume.path(directory).join("file"), 0o600);
        }
        volume
    }

    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }
}

fn btrfs(verb: &[&str], paths: &[PathBuf]) {
    run(Command::new("btrfs").args(verb).args(paths));
}

fn device(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("the path exists").dev()
}

#[test]
fn subvolumes_are_walked_as_parts_of_the_volume() {
    let volume = Volume::new();
    let devices =
        ["", "outer", "outer/inner"].map(|directory| device(&volume.path(directory).join("file")));
    assert!(devices[0] != devices[1] && devices[1] != devices[2]);

    let counts = apply_and_count(&volume.mount, GROUP);

    assert_eq!((counts.entries, counts.changed), (6, 6));
    assert_eq!((counts.other_mounts, counts.read_only), (0, 0));
    for directory in ["outer", "outer/inner"] {
        assert_eq!(group_and_mode(&volume.path(directory)), (GROUP, 0o2775));
        let file = volume.path(directory).join("file");
        assert_eq!(group_and_mode(&file), (GROUP, 0o660));
    }
}

#[test]
fn a_read_only_snapshot_is_not_changed_but_everything_else_is() {
    let volume = Volume::new();
    let snapshot = [volume.path("outer/inner"), volume.path("snapshot")];
    btrfs(&["subvolume", "snapshot", "-r"], &snapshot);

    let counts = apply_and_count(&volume.mount, GROUP);

    assert_eq!(counts.read_only, 2, "the snapshot's root and its file");
    assert_eq!((counts.entries, counts.changed), (8, 6));
    assert_eq!(group_and_mode(&volume.path("snapshot/file")), (0, 0o600));
    assert_eq!(
        group_and_mode(&volume.path("outer/inner/file")),
        (GROUP, 0o660)
    );
    assert_eq!(
        group_and_mode(&volume.path(".")).0,
        GROUP,
        "the root is done"
    );
}

/// A snapshot has an empty directory in the place of a nested subvolume. The directory doesn't exist on the disk.
#[test]
fn a_writable_snapshot_is_changed() {
    let volume = Volume::new();
    let snapshot = [volume.path("outer"), volume.path("snapshot")];
    btrfs(&["subvolume", "snapshot"], &snapshot);

    let counts = apply_and_count(&volume.mount, GROUP);

    assert_eq!(counts.read_only, 0);
    assert_eq!(
        group_and_mode(&volume.path("snapshot/file")),
        (GROUP, 0o660)
    );
    assert_eq!(group_and_mode(&volume.path("outer/file")), (GROUP, 0o660));
}

/// Other mounts are recognized by their mount ids, not by `st_dev`: another device is skipped, and so is a second mount
/// of this one.
#[test]
fn another_mount_in_a_subvolume_is_not_changed() {
    in_mount_namespace(
        "subvolumes::another_mount_in_a_subvolume_is_not_changed",
        || {
            let volume = Volume::new();
            let mount_point = tempfile::tempdir().expect("a temporary directory");
            let _attached = TestMount::attached(&volume.mount, mount_point.path());
            for directory in ["outer/other", "outer/again"] {
                fs::create_dir(mount_point.path().join(directory)).expect("a directory");
            }
            let (other, again) = (
                mount_point.path().join("outer/other"),
                mount_point.path().join("outer/again"),
            );
            let image = Image::ext4(&[]);
            let loop_device = image.attach();
            let other = TestMount::device(loop_device.path(), &other, "ext4", "rw")
                .expect("the volume is mounted");
            let file = mount_point.path().join("outer/other/file");
            fs::write(&file, "").expect("a file");
            set_mode(&file, 0o600);
            let again = TestMount::bind(&mount_point.path().join("outer/inner"), &again);
            assert_eq!(
                device(&mount_point.path().join("outer/again")),
                device(&mount_point.path().join("outer/inner"))
            );

            let counts = apply_and_count(&volume.mount, GROUP);

            assert_eq!(
                (counts.other_mounts, counts.entries, counts.changed),
                (2, 6, 6)
            );
            assert_eq!(group_and_mode(&file), (0, 0o600));
            drop((other, again));
            assert_eq!(group_and_mode(&mount_point.path().join("outer/other")).0, 0);
        },
    );
}

/// kubelet mounts file systems that are read-only by design, and doesn't change them.
#[test]
fn a_file_system_that_is_read_only_by_design_is_not_changed() {
    let volume = Volume::new();
    let snapshot = [volume.path("outer"), volume.path("snapshot")];
    btrfs(&["subvolume", "snapshot", "-r"], &snapshot);
    let subvolume = mount_detached(&MountRequest {
        device: &volume.loop_device.facts(),
        fstype: "btrfs",
        options: &options::parse(&["subvol=snapshot"]).expect("the options are valid"),
        exclusive: false,
    });
    let subvolume = subvolume.expect("the volume is mounted");

    let image = Image::ext4(&[]);
    run(Command::new("tune2fs")
        .args(["-O", "read-only"])
        .arg(image.path()));
    let loop_device = image.attach();
    let mount = |exclusive| {
        let mounted = mount_detached(&MountRequest {
            device: &loop_device.facts(),
            fstype: "ext4",
            options: &options::parse(&["rw"]).expect("the options are valid"),
            exclusive,
        });
        mounted.expect("the volume is mounted")
    };
    let ext4 = mount(true);
    // Mounts the file system a second time, as for a second pod.
    let second = mount(false);

    for (name, root) in [
        ("a snapshot", &subvolume),
        ("an ext4", &ext4),
        ("an ext4", &second),
    ] {
        let outcome = try_apply(root, GROUP).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(outcome, FsGroupOutcome::ReadOnly, "{name}");
    }
    assert_eq!(group_and_mode(&volume.path("snapshot/file")), (0, 0o600));
}

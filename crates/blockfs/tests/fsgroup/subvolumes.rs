//! btrfs: subvolumes have an `st_dev` each and are one mount. kubelet's walk goes by path and
//! descends into them.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_blockfs::filesystem::{MountRequest, mount_detached};
use crust_blockfs::fsgroup::FsGroupOutcome;
use crust_blockfs::options;

use crate::support::{Image, Loop, Mounted, group_and_mode, in_own_mount_namespace, run, set_mode};
use crate::{GROUP, applied, try_apply};

/// A btrfs with a subvolume, one in that, and a file in each of the three.
struct Volume {
    mount: OwnedFd,
    root: PathBuf,
    on: Loop,
    _image: Image,
}

impl Volume {
    fn new() -> Self {
        let image = Image::made("btrfs", &[]);
        let on = image.attach();
        let mount = mount_detached(&MountRequest {
            device: &on.facts(),
            fstype: "btrfs",
            options: &options::parse(&["rw"]).expect("the options are valid"),
            exclusive: true,
        });
        let mount = mount.expect("it is mounted");
        // For the tools, which are given paths.
        let root = format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd());
        let volume = Self {
            mount,
            root: root.into(),
            on,
            _image: image,
        };
        for directory in ["", "outer", "outer/inner"] {
            if !directory.is_empty() {
                btrfs(&["subvolume", "create"], &[volume.at(directory)]);
            }
            fs::write(volume.at(directory).join("file"), "").expect("a file");
            set_mode(&volume.at(directory).join("file"), 0o600);
        }
        volume
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }
}

fn btrfs(verb: &[&str], paths: &[PathBuf]) {
    run(Command::new("btrfs").args(verb).args(paths));
}

fn device(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("it is there").dev()
}

#[test]
fn subvolumes_are_walked_as_a_part_of_the_volume() {
    let volume = Volume::new();
    let devices =
        ["", "outer", "outer/inner"].map(|directory| device(&volume.at(directory).join("file")));
    assert!(devices[0] != devices[1] && devices[1] != devices[2]);

    let counts = applied(&volume.mount, GROUP);

    assert_eq!((counts.entries, counts.changed), (6, 6));
    assert_eq!((counts.other_mounts, counts.read_only), (0, 0));
    for directory in ["outer", "outer/inner"] {
        assert_eq!(group_and_mode(&volume.at(directory)), (GROUP, 0o2775));
        let file = volume.at(directory).join("file");
        assert_eq!(group_and_mode(&file), (GROUP, 0o660));
    }
}

#[test]
fn a_read_only_snapshot_stays_as_it_is_and_the_rest_is_changed() {
    let volume = Volume::new();
    let snapshot = [volume.at("outer/inner"), volume.at("snapshot")];
    btrfs(&["subvolume", "snapshot", "-r"], &snapshot);

    let counts = applied(&volume.mount, GROUP);

    assert_eq!(counts.read_only, 2, "the snapshot's root and its file");
    assert_eq!((counts.entries, counts.changed), (8, 6));
    assert_eq!(group_and_mode(&volume.at("snapshot/file")), (0, 0o600));
    assert_eq!(
        group_and_mode(&volume.at("outer/inner/file")),
        (GROUP, 0o660)
    );
    assert_eq!(group_and_mode(&volume.at(".")).0, GROUP, "the root is done");
}

/// In it an empty directory, which is nowhere on the disk, stands for the subvolume below.
#[test]
fn a_snapshot_that_can_be_written_to_is_changed_as_well() {
    let volume = Volume::new();
    let snapshot = [volume.at("outer"), volume.at("snapshot")];
    btrfs(&["subvolume", "snapshot"], &snapshot);

    let counts = applied(&volume.mount, GROUP);

    assert_eq!(counts.read_only, 0);
    assert_eq!(group_and_mode(&volume.at("snapshot/file")), (GROUP, 0o660));
    assert_eq!(group_and_mode(&volume.at("outer/file")), (GROUP, 0o660));
}

/// Decided by mount, not by `st_dev`: another device is left out, and so is a second mount of
/// this one.
#[test]
fn another_mount_in_a_subvolume_is_left_alone() {
    in_own_mount_namespace(
        "subvolumes::another_mount_in_a_subvolume_is_left_alone",
        || {
            let volume = Volume::new();
            let here = tempfile::tempdir().expect("a temporary directory");
            let _attached = Mounted::attached(&volume.mount, here.path());
            for directory in ["outer/other", "outer/again"] {
                fs::create_dir(here.path().join(directory)).expect("a directory");
            }
            let (other, again) = (
                here.path().join("outer/other"),
                here.path().join("outer/again"),
            );
            let image = Image::ext4(&[]);
            let on = image.attach();
            let other = Mounted::device(on.path(), &other, "ext4", "rw").expect("it is mounted");
            let file = here.path().join("outer/other/file");
            fs::write(&file, "").expect("a file");
            set_mode(&file, 0o600);
            let again = Mounted::bind(&here.path().join("outer/inner"), &again);
            assert_eq!(
                device(&here.path().join("outer/again")),
                device(&here.path().join("outer/inner"))
            );

            let counts = applied(&volume.mount, GROUP);

            assert_eq!(
                (counts.other_mounts, counts.entries, counts.changed),
                (2, 6, 6)
            );
            assert_eq!(group_and_mode(&file), (0, 0o600));
            drop((other, again));
            assert_eq!(group_and_mode(&here.path().join("outer/other")).0, 0);
        },
    );
}

/// kubelet mounts what can only be read, and leaves its files as they are.
#[test]
fn what_is_read_only_by_its_nature_stays_as_it_is() {
    let volume = Volume::new();
    let snapshot = [volume.at("outer"), volume.at("snapshot")];
    btrfs(&["subvolume", "snapshot", "-r"], &snapshot);
    let subvolume = mount_detached(&MountRequest {
        device: &volume.on.facts(),
        fstype: "btrfs",
        options: &options::parse(&["subvol=snapshot"]).expect("the options are valid"),
        exclusive: false,
    });
    let subvolume = subvolume.expect("it is mounted");

    let image = Image::ext4(&[]);
    run(Command::new("tune2fs")
        .args(["-O", "read-only"])
        .arg(image.path()));
    let on = image.attach();
    let mount = |exclusive| {
        let mounted = mount_detached(&MountRequest {
            device: &on.facts(),
            fstype: "ext4",
            options: &options::parse(&["rw"]).expect("the options are valid"),
            exclusive,
        });
        mounted.expect("it is mounted")
    };
    let ext4 = mount(true);
    // A second pod's.
    let again = mount(false);

    for (what, root) in [
        ("a snapshot", &subvolume),
        ("an ext4", &ext4),
        ("an ext4", &again),
    ] {
        let outcome = try_apply(root, GROUP).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(outcome, FsGroupOutcome::ReadOnly, "{what}");
    }
    assert_eq!(group_and_mode(&volume.at("snapshot/file")), (0, 0o600));
}

//! Compares the result of reading the inode tables with that of a walk.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_blockfs::Deadline;
use crust_blockfs::fsgroup::{FsGroupError, FsGroupOutcome, FsGroupRequest, apply};
use fastrand::Rng;

use crate::support::{
    Image, TestLoopDevice, TestMount, edit_ext4, in_mount_namespace, kernel, run, set_mode,
    wait_until_free,
};
use crate::{GROUP, fsgroup_request};

/// A file system that is mounted, unmounted and mounted again.
struct Volume {
    fstype: &'static str,
    options: &'static str,
    loop_device: TestLoopDevice,
    mount_point: tempfile::TempDir,
    mounted: Option<TestMount>,
    image: Image,
}

impl Volume {
    fn new(fstype: &'static str, arguments: &[&str]) -> Self {
        Self::from_image(fstype, Image::formatted(fstype, arguments))
    }

    fn from_image(fstype: &'static str, image: Image) -> Self {
        let mut volume = Self {
            fstype,
            options: "rw",
            loop_device: image.attach(),
            mount_point: tempfile::tempdir().expect("a temporary directory"),
            mounted: None,
            image,
        };
        volume.remount();
        volume
    }

    fn root(&self) -> &Path {
        self.mount_point.path()
    }

    fn unmount(&mut self) {
        drop(self.mounted.take());
        wait_until_free(&self.loop_device.device());
    }

    fn remount(&mut self) {
        self.unmount();
        let mounted = TestMount::device(
            self.loop_device.path(),
            self.mount_point.path(),
            self.fstype,
            self.options,
        );
        self.mounted = Some(mounted.expect("the volume is mounted"));
    }

    fn apply(&self) -> FsGroupOutcome {
        self.apply_with_device(&self.loop_device)
    }

    fn apply_with_device(&self, loop_device: &TestLoopDevice) -> FsGroupOutcome {
        let outcome = self.try_apply(loop_device, Deadline::never());
        outcome.expect("fsGroup is applied")
    }

    fn try_apply(
        &self,
        loop_device: &TestLoopDevice,
        deadline: Deadline,
    ) -> Result<FsGroupOutcome, FsGroupError> {
        let device = loop_device.facts();
        let request = FsGroupRequest {
            device: Some(&device),
            ..fsgroup_request(GROUP, crust_blockfs::fsgroup::FsGroupChangePolicy::Always)
        };
        let root = fs::File::open(self.root()).expect("the root opens");
        apply(root.as_fd(), &request, deadline, &mut |_| {})
    }

    /// Returns the paths of all entries, the root first.
    fn entries(&self) -> Vec<PathBuf> {
        let mut entries = vec![self.root().to_owned()];
        let mut next = 0;
        while let Some(entry) = entries.get(next).cloned() {
            next += 1;
            if fs::symlink_metadata(&entry).expect("an entry").is_dir() {
                let children = fs::read_dir(entry).expect("a directory");
                entries.extend(children.map(|entry| entry.expect("an entry").path()));
            }
        }
        entries
    }

    /// Walks the tree. Returns the number of inodes, and how many of them need a change.
    fn count_inodes(&self) -> (u64, usize) {
        let entries = self.entries();
        let entries = entries.iter().map(fs::symlink_metadata);
        let mut inodes: Vec<_> = entries.map(|entry| entry.expect("an entry")).collect();
        inodes.sort_by_key(MetadataExt::ino);
        inodes.dedup_by_key(|entry| entry.ino());
        let needing_change = inodes.iter().filter(|entry| {
            let bits = match entry.file_type() {
                kind if kind.is_symlink() => 0,
                kind if kind.is_dir() => 0o2770,
                _ => 0o660,
            };
            entry.gid() != GROUP || entry.mode() & bits != bits
        });
        (inodes.len() as u64, needing_change.count())
    }
}

/// Makes one random change to the tree. It may leave all groups and modes as they are.
fn change_randomly(volume: &Volume, random: &mut Rng) {
    let entries = volume.entries();
    let entry = &entries[random.usize(..entries.len())];
    let kind = fs::symlink_metadata(entry).expect("an entry").file_type();
    let sibling = entry.with_file_name(format!("{:x}", random.u32(..)));
    let child = entry.join(format!("{:x}", random.u32(..)));
    let is_root = entry == volume.root();
    match random.u8(..10) {
        0 if kind.is_dir() => fs::create_dir(child).expect("a directory"),
        1 if kind.is_dir() => drop(fs::File::create(child).expect("a file")),
        2 if kind.is_dir() => symlink("/etc/passwd", child).expect("a link"),
        3 if kind.is_dir() => {
            run(Command::new("mkfifo").arg("--mode=660").arg(&child));
            std::os::unix::fs::lchown(child, None, Some(GROUP)).expect("chown");
        }
        4 if kind.is_file() => fs::hard_link(entry, sibling).expect("another name"),
        5 if !kind.is_dir() => fs::remove_file(entry).expect("the entry is removed"),
        6 if !is_root => {
            let group = if random.bool() { GROUP } else { GROUP + 65536 };
            std::os::unix::fs::lchown(entry, None, Some(group)).expect("chown");
        }
        7 if !kind.is_symlink() => set_mode(entry, 0o660 | random.u32(..0o10000)),
        8 if kind.is_file() || kind.is_fifo() => set_mode(entry, random.u32(..0o1000) | 0o600),
        _ => fs::create_dir_all(volume.root().join("a/b/c")).expect("directories"),
    }
}

/// Changes a tree at random in many rounds. In each, the tables must show that all inodes match if and only if that is
/// true.
fn assert_tables_agree(fstype: &'static str, arguments: &[&str]) {
    let rounds = rounds();
    let mut volume = Volume::new(fstype, arguments);
    let seed = fastrand::u64(..);
    println!("{fstype} {arguments:?}, seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut matching = 0;
    for round in 0..rounds {
        for _ in 0..random.u8(..3) {
            change_randomly(&volume, &mut random);
        }
        if random.u8(..16) == 0 {
            volume.remount();
        }
        let (inodes, needing_change) = volume.count_inodes();
        match volume.apply() {
            FsGroupOutcome::AllInodesMatch {
                inodes: reported, ..
            } => {
                assert_eq!((reported, needing_change), (inodes, 0), "in round {round}");
                matching += 1;
            }
            FsGroupOutcome::Applied(progress) => {
                assert!(
                    needing_change > 0,
                    "all {inodes} inodes match in round {round}"
                );
                assert!(progress.counts.changed >= needing_change as u64);
            }
            other => panic!("the policy is Always: {other}"),
        }
    }
    assert!(
        (rounds / 10..rounds * 9 / 10).contains(&matching),
        "{matching} of {rounds}"
    );
}

/// Returns the number of rounds. There are fewer on an emulated processor (`make vm-test`).
fn rounds() -> usize {
    if std::env::var_os("RUNCRUST_TEST_SLOWNESS").is_some() {
        50
    } else {
        500
    }
}

#[test]
fn tables_of_a_default_ext4_agree() {
    in_mount_namespace("inodes::tables_of_a_default_ext4_agree", || {
        assert_tables_agree("ext4", &[]);
        assert_tables_agree(
            "ext4",
            &["-E", "lazy_itable_init=1,nodiscard", "-N", "8192"],
        );
    });
}

#[test]
fn tables_of_an_ext4_with_many_groups_agree() {
    in_mount_namespace("inodes::tables_of_an_ext4_with_many_groups_agree", || {
        assert_tables_agree("ext4", &["-b", "1024", "-g", "512"]);
    });
}

#[test]
fn tables_of_an_ext4_with_old_features_agree() {
    in_mount_namespace("inodes::tables_of_an_ext4_with_old_features_agree", || {
        let features = "^64bit,^metadata_csum,^uninit_bg,^flex_bg";
        assert_tables_agree("ext4", &["-b", "1024", "-I", "128", "-O", features]);
    });
}

#[test]
fn tables_of_an_ext4_with_an_orphan_file_agree() {
    in_mount_namespace(
        "inodes::tables_of_an_ext4_with_an_orphan_file_agree",
        || {
            assert_tables_agree("ext4", &["-O", "orphan_file"]);
        },
    );
}

#[test]
fn tables_of_other_ext4_inode_layouts_agree() {
    in_mount_namespace("inodes::tables_of_other_ext4_inode_layouts_agree", || {
        assert_tables_agree(
            "ext4",
            &["-I", "1024", "-O", "inline_data,large_dir,ea_inode"],
        );
        assert_tables_agree("ext4", &["-b", "1024", "-O", "bigalloc"]);
        assert_tables_agree("ext4", &["-O", "mmp,sparse_super2"]);
    });
}

#[test]
fn tables_of_an_xfs_agree() {
    in_mount_namespace("inodes::tables_of_an_xfs_agree", || {
        if kernel() < XFS_TABLES_SINCE {
            assert_walked(&Volume::new("xfs", &[]), "xfs");
            return;
        }
        assert_tables_agree("xfs", &[]);
        assert_tables_agree("xfs", &["-i", "size=2048", "-m", "finobt=0,rmapbt=0"]);
    });
}

/// The first Linux version in which the inodes of an xfs are read. Before, reading them could change the file system.
const XFS_TABLES_SINCE: (u32, u32) = (6, 6);

/// Returns the types whose tables are read on this kernel.
fn types_with_tables() -> &'static [&'static str] {
    if kernel() < XFS_TABLES_SINCE {
        &["ext4"]
    } else {
        &["ext4", "xfs"]
    }
}

/// Checks that a volume is walked even if all entries match.
fn assert_walked(volume: &Volume, name: &str) {
    let _ = volume.apply();
    let outcome = volume.apply();
    let FsGroupOutcome::Applied(progress) = outcome else {
        panic!("{name}: {outcome}");
    };
    assert_eq!(progress.counts.changed, 0, "{name}");
}

/// The inode tables of these file systems aren't supported, or the driver may not use the tables.
#[test]
fn other_file_systems_are_walked() {
    in_mount_namespace("inodes::other_file_systems_are_walked", || {
        for (fstype, arguments) in [
            ("ext3", vec![]),
            ("ext2", vec![]),
            ("ext4", vec!["-O", "meta_bg,^resize_inode"]),
            // Without a journal the tables may be wrong after a crash.
            ("ext4", vec!["-O", "^has_journal"]),
            ("btrfs", vec![]),
        ] {
            let volume = Volume::new(fstype, &arguments);
            fs::create_dir(volume.root().join("directory")).expect("a directory");
            assert_walked(&volume, &format!("{fstype} {arguments:?}"));
        }
    });
}

/// debugfs(8) changes a file system whose entries all match, as a flipped bit might.
#[test]
fn an_inconsistent_ext4_is_walked() {
    in_mount_namespace("inodes::an_inconsistent_ext4_is_walked", || {
        for request in [
            "set_super_value state 3",
            "freei <14>",
            "seti <20>",
            "set_block_group 0 free_inodes_count 7",
        ] {
            // Without checksums, so that the driver doesn't detect the change.
            let mut volume = Volume::new("ext4", &["-O", "^metadata_csum,^uninit_bg"]);
            for file in 0..5 {
                fs::write(volume.root().join(file.to_string()), "").expect("a file");
            }
            let _ = volume.apply();
            assert!(matches!(
                volume.apply(),
                FsGroupOutcome::AllInodesMatch { .. }
            ));
            volume.unmount();
            edit_ext4(volume.loop_device.path(), request);
            volume.remount();
            assert_walked(&volume, request);
        }
    });
}

/// With `sb=` the driver uses a copy of the group descriptors. In the primary descriptors groups are still marked
/// unused.
#[test]
fn an_ext4_mounted_with_a_copy_of_the_superblock_is_walked() {
    in_mount_namespace(
        "inodes::an_ext4_mounted_with_a_copy_of_the_superblock_is_walked",
        || {
            let mut volume = Volume::new("ext4", &["-b", "1024", "-g", "1024"]);
            volume.options = "sb=1025";
            volume.remount();
            for directory in 0..20 {
                let directory = volume.root().join(directory.to_string());
                fs::create_dir(&directory).expect("a directory");
                fs::write(directory.join("file"), "").expect("a file");
            }
            assert_walked(&volume, volume.options);
        },
    );
}

/// The tables of another device don't show anything about the mounted one.
#[test]
fn tables_of_another_device_are_not_used() {
    in_mount_namespace("inodes::tables_of_another_device_are_not_used", || {
        let (volume, other) = (Volume::new("ext4", &[]), Volume::new("ext4", &[]));
        for volume in [&volume, &other] {
            assert!(matches!(volume.apply(), FsGroupOutcome::Applied(_)));
            assert!(matches!(
                volume.apply(),
                FsGroupOutcome::AllInodesMatch { .. }
            ));
        }
        let outcome = volume.apply_with_device(&other.loop_device);
        assert!(matches!(outcome, FsGroupOutcome::Applied(_)), "{outcome}");
    });
}

/// The file has no name any more, but a process that has it open may give it a new one.
#[test]
fn an_open_file_without_a_name_counts() {
    in_mount_namespace("inodes::an_open_file_without_a_name_counts", || {
        for fstype in types_with_tables() {
            let volume = Volume::new(fstype, &[]);
            let path = volume.root().join("file");
            let file = fs::File::create(&path).expect("a file");
            let _ = volume.apply();
            assert!(
                matches!(volume.apply(), FsGroupOutcome::AllInodesMatch { .. }),
                "{fstype}"
            );
            fs::remove_file(&path).expect("the entry is removed");
            std::os::unix::fs::fchown(&file, None, Some(0)).expect("chown");
            assert!(
                matches!(volume.apply(), FsGroupOutcome::Applied(_)),
                "{fstype}"
            );
            drop(file);
            assert!(
                matches!(volume.apply(), FsGroupOutcome::AllInodesMatch { .. }),
                "{fstype}"
            );
        }
    });
}

#[test]
#[ignore = "needs CAP_SYS_RESOURCE; runs in the guest: make vm-test"]
fn the_tables_of_an_ext4_that_grew_while_mounted_are_read() {
    in_mount_namespace(
        "inodes::the_tables_of_an_ext4_that_grew_while_mounted_are_read",
        || {
            let volume = Volume::new("ext4", &["-b", "1024", "-g", "1024"]);
            let before = fs::File::options().write(true).open(volume.image.path());
            before
                .expect("the image")
                .set_len(96 << 20)
                .expect("the file grows");
            run(Command::new("losetup")
                .arg("--set-capacity")
                .arg(volume.loop_device.path()));
            run(Command::new("resize2fs").arg(volume.loop_device.path()));
            for directory in 0..100 {
                fs::create_dir(volume.root().join(directory.to_string())).expect("a directory");
            }
            let _ = volume.apply();
            let outcome = volume.apply();
            assert!(
                matches!(outcome, FsGroupOutcome::AllInodesMatch { inodes: 102, .. }),
                "{outcome}"
            );
            let last = volume.root().join("99");
            set_mode(&last, 0o700);
            let outcome = volume.apply();
            assert!(matches!(outcome, FsGroupOutcome::Applied(_)), "{outcome}");
        },
    );
}

/// A copy of a mounted file system is like one after a crash. The mount replays its journal.
#[test]
fn the_tables_of_an_ext4_with_a_replayed_journal_are_read() {
    in_mount_namespace(
        "inodes::the_tables_of_an_ext4_with_a_replayed_journal_are_read",
        || {
            let first = Volume::new("ext4", &[]);
            for file in 0..100 {
                fs::write(first.root().join(file.to_string()), "").expect("a file");
            }
            let _ = first.apply();
            run(Command::new("sync").arg("--file-system").arg(first.root()));
            let crashed = Volume::from_image("ext4", Image::cloned_from(&first.image));
            let outcome = crashed.apply();
            assert!(
                matches!(outcome, FsGroupOutcome::AllInodesMatch { inodes: 102, .. }),
                "{outcome}"
            );
        },
    );
}

#[test]
fn an_expired_deadline_stops_reading_the_tables() {
    in_mount_namespace(
        "inodes::an_expired_deadline_stops_reading_the_tables",
        || {
            for fstype in ["ext4", "xfs"] {
                let volume = Volume::new(fstype, &[]);
                let _ = volume.apply();
                let expired = Deadline::after(std::time::Duration::ZERO);
                let outcome = volume.try_apply(&volume.loop_device, expired);
                assert!(
                    matches!(outcome, Err(FsGroupError::Stopped { .. })),
                    "{fstype}: {outcome:?}"
                );
            }
        },
    );
}

//! What a file system's tables say, against what is found by its names.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crust_blockfs::Deadline;
use crust_blockfs::fsgroup::{FsGroupError, FsGroupOutcome, FsGroupRequest, apply};
use fastrand::Rng;

use crate::support::{
    Image, Loop, Mounted, in_own_mount_namespace, kernel, run, set_mode, wait_until_free,
};
use crate::{GROUP, order};

/// A file system that is mounted, unmounted and mounted again.
struct Volume {
    fstype: &'static str,
    options: &'static str,
    on: Loop,
    place: tempfile::TempDir,
    mounted: Option<Mounted>,
    image: Image,
}

impl Volume {
    fn new(fstype: &'static str, arguments: &[&str]) -> Self {
        Self::of(fstype, Image::made(fstype, arguments))
    }

    fn of(fstype: &'static str, image: Image) -> Self {
        let mut volume = Self {
            fstype,
            options: "rw",
            on: image.attach(),
            place: tempfile::tempdir().expect("a temporary directory"),
            mounted: None,
            image,
        };
        volume.mount_again();
        volume
    }

    fn root(&self) -> &Path {
        self.place.path()
    }

    fn unmount(&mut self) {
        drop(self.mounted.take());
        wait_until_free(&self.on.device());
    }

    fn mount_again(&mut self) {
        self.unmount();
        let mounted = Mounted::device(self.on.path(), self.place.path(), self.fstype, self.options);
        self.mounted = Some(mounted.expect("it is mounted"));
    }

    fn apply(&self) -> FsGroupOutcome {
        self.apply_asking(&self.on)
    }

    fn apply_asking(&self, on: &Loop) -> FsGroupOutcome {
        let outcome = self.try_apply(on, Deadline::never());
        outcome.expect("fsGroup is applied")
    }

    fn try_apply(&self, on: &Loop, deadline: Deadline) -> Result<FsGroupOutcome, FsGroupError> {
        let device = on.facts();
        let order = FsGroupRequest {
            device: Some(&device),
            ..order(GROUP, crust_blockfs::fsgroup::FsGroupChangePolicy::Always)
        };
        let root = fs::File::open(self.root()).expect("the root opens");
        apply(root.as_fd(), &order, deadline, &mut |_| {})
    }

    /// Every entry, the root first.
    fn entries(&self) -> Vec<PathBuf> {
        let mut entries = vec![self.root().to_owned()];
        let mut next = 0;
        while let Some(entry) = entries.get(next).cloned() {
            next += 1;
            if fs::symlink_metadata(&entry).expect("an entry").is_dir() {
                let below = fs::read_dir(entry).expect("a directory");
                entries.extend(below.map(|entry| entry.expect("an entry").path()));
            }
        }
        entries
    }

    /// How many inodes names lead to, and how many of these aren't as a pod of the group wants them.
    fn inodes_and_wrong(&self) -> (u64, usize) {
        let entries = self.entries();
        let entries = entries.iter().map(fs::symlink_metadata);
        let mut inodes: Vec<_> = entries.map(|entry| entry.expect("an entry")).collect();
        inodes.sort_by_key(MetadataExt::ino);
        inodes.dedup_by_key(|entry| entry.ino());
        let wrong = inodes.iter().filter(|entry| {
            let bits = match entry.file_type() {
                kind if kind.is_symlink() => 0,
                kind if kind.is_dir() => 0o2770,
                _ => 0o660,
            };
            entry.gid() != GROUP || entry.mode() & bits != bits
        });
        (inodes.len() as u64, wrong.count())
    }
}

/// Does one thing to the tree, and maybe nothing to its owners.
fn something(volume: &Volume, random: &mut Rng) {
    let entries = volume.entries();
    let at = &entries[random.usize(..entries.len())];
    let kind = fs::symlink_metadata(at).expect("an entry").file_type();
    let beside = at.with_file_name(format!("{:x}", random.u32(..)));
    let below = at.join(format!("{:x}", random.u32(..)));
    let is_root = at == volume.root();
    match random.u8(..10) {
        0 if kind.is_dir() => fs::create_dir(below).expect("a directory"),
        1 if kind.is_dir() => drop(fs::File::create(below).expect("a file")),
        2 if kind.is_dir() => symlink("/etc/passwd", below).expect("a link"),
        3 if kind.is_dir() => {
            run(Command::new("mkfifo").arg("--mode=660").arg(&below));
            std::os::unix::fs::lchown(below, None, Some(GROUP)).expect("chown");
        }
        4 if kind.is_file() => fs::hard_link(at, beside).expect("another name"),
        5 if !kind.is_dir() => fs::remove_file(at).expect("it is removed"),
        6 if !is_root => {
            let group = if random.bool() { GROUP } else { GROUP + 65536 };
            std::os::unix::fs::lchown(at, None, Some(group)).expect("chown");
        }
        7 if !kind.is_symlink() => set_mode(at, 0o660 | random.u32(..0o10000)),
        8 if kind.is_file() || kind.is_fifo() => set_mode(at, random.u32(..0o1000) | 0o600),
        _ => fs::create_dir_all(volume.root().join("a/b/c")).expect("directories"),
    }
}

/// In many rounds of changes the tables say that all is right where it is, and never where it isn't.
fn agrees(fstype: &'static str, arguments: &[&str]) {
    let rounds = rounds();
    let mut volume = Volume::new(fstype, arguments);
    let seed = fastrand::u64(..);
    println!("{fstype} {arguments:?}, seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut right = 0;
    for round in 0..rounds {
        for _ in 0..random.u8(..3) {
            something(&volume, &mut random);
        }
        if random.u8(..16) == 0 {
            volume.mount_again();
        }
        let (inodes, wrong) = volume.inodes_and_wrong();
        match volume.apply() {
            FsGroupOutcome::AllInodesMatch { inodes: told, .. } => {
                assert_eq!((told, wrong), (inodes, 0), "in round {round}");
                right += 1;
            }
            FsGroupOutcome::Applied(progress) => {
                assert!(wrong > 0, "{inodes} inodes are right in round {round}");
                assert!(progress.counts.changed >= wrong as u64);
            }
            other => panic!("the policy is Always: {other}"),
        }
    }
    assert!(
        (rounds / 10..rounds * 9 / 10).contains(&right),
        "{right} of {rounds}"
    );
}

/// Fewer where a processor is emulated (`make vm-test`).
fn rounds() -> usize {
    if std::env::var_os("RUNCRUST_TEST_SLOWNESS").is_some() {
        50
    } else {
        500
    }
}

#[test]
fn ext4_as_it_is_made_by_default() {
    in_own_mount_namespace("inodes::ext4_as_it_is_made_by_default", || {
        agrees("ext4", &[]);
        agrees(
            "ext4",
            &["-E", "lazy_itable_init=1,nodiscard", "-N", "8192"],
        );
    });
}

#[test]
fn ext4_with_many_groups() {
    in_own_mount_namespace("inodes::ext4_with_many_groups", || {
        agrees("ext4", &["-b", "1024", "-g", "512"]);
    });
}

#[test]
fn ext4_of_long_ago() {
    in_own_mount_namespace("inodes::ext4_of_long_ago", || {
        let features = "^64bit,^metadata_csum,^uninit_bg,^flex_bg";
        agrees("ext4", &["-b", "1024", "-I", "128", "-O", features]);
    });
}

#[test]
fn ext4_with_files_of_its_own() {
    in_own_mount_namespace("inodes::ext4_with_files_of_its_own", || {
        agrees("ext4", &["-O", "orphan_file"]);
    });
}

#[test]
fn ext4_with_inodes_of_other_kinds() {
    in_own_mount_namespace("inodes::ext4_with_inodes_of_other_kinds", || {
        agrees(
            "ext4",
            &["-I", "1024", "-O", "inline_data,large_dir,ea_inode"],
        );
        agrees("ext4", &["-b", "1024", "-O", "bigalloc"]);
        agrees("ext4", &["-O", "mmp,sparse_super2"]);
    });
}

#[test]
fn xfs() {
    in_own_mount_namespace("inodes::xfs", || {
        if kernel() < XFS_IS_ASKED {
            is_walked(&Volume::new("xfs", &[]), "xfs");
            return;
        }
        agrees("xfs", &[]);
        agrees("xfs", &["-i", "size=2048", "-m", "finobt=0,rmapbt=0"]);
    });
}

/// Older kernels change something when they are asked.
const XFS_IS_ASKED: (u32, u32) = (6, 6);

/// Those whose tables are asked here.
fn asked() -> &'static [&'static str] {
    if kernel() < XFS_IS_ASKED {
        &["ext4"]
    } else {
        &["ext4", "xfs"]
    }
}

/// Where all is right, too.
fn is_walked(volume: &Volume, what: &str) {
    let _ = volume.apply();
    let outcome = volume.apply();
    let FsGroupOutcome::Applied(progress) = outcome else {
        panic!("{what}: {outcome}");
    };
    assert_eq!(progress.counts.changed, 0, "{what}");
}

/// Nothing is known of their tables, or these may not be what the driver goes by.
#[test]
fn other_file_systems_are_walked() {
    in_own_mount_namespace("inodes::other_file_systems_are_walked", || {
        for (fstype, arguments) in [
            ("ext3", vec![]),
            ("ext2", vec![]),
            ("ext4", vec!["-O", "meta_bg,^resize_inode"]),
            // Nothing restores its tables after a crash.
            ("ext4", vec!["-O", "^has_journal"]),
            ("btrfs", vec![]),
        ] {
            let volume = Volume::new(fstype, &arguments);
            fs::create_dir(volume.root().join("directory")).expect("a directory");
            is_walked(&volume, &format!("{fstype} {arguments:?}"));
        }
    });
}

/// What debugfs(8) or a flipped bit makes of one that was all right.
#[test]
fn an_ext4_that_contradicts_itself_is_walked() {
    in_own_mount_namespace("inodes::an_ext4_that_contradicts_itself_is_walked", || {
        for request in [
            "set_super_value state 3",
            "freei <14>",
            "seti <20>",
            "set_block_group 0 free_inodes_count 7",
        ] {
            // Without checksums, which the driver would find wrong.
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
            let mut debugfs = Command::new("debugfs");
            run(debugfs.args(["-w", "-R", request]).arg(volume.on.path()));
            volume.mount_again();
            is_walked(&volume, request);
        }
    });
}

/// Its driver reads and writes other descriptors than the first, which say then that groups are unused.
#[test]
fn an_ext4_with_another_superblock_is_walked() {
    in_own_mount_namespace("inodes::an_ext4_with_another_superblock_is_walked", || {
        let mut volume = Volume::new("ext4", &["-b", "1024", "-g", "1024"]);
        volume.options = "sb=1025";
        volume.mount_again();
        for directory in 0..20 {
            let directory = volume.root().join(directory.to_string());
            fs::create_dir(&directory).expect("a directory");
            fs::write(directory.join("file"), "").expect("a file");
        }
        is_walked(&volume, volume.options);
    });
}

/// What is all right on one device says nothing of what is mounted.
#[test]
fn another_device_is_not_asked() {
    in_own_mount_namespace("inodes::another_device_is_not_asked", || {
        let (volume, other) = (Volume::new("ext4", &[]), Volume::new("ext4", &[]));
        for volume in [&volume, &other] {
            assert!(matches!(volume.apply(), FsGroupOutcome::Applied(_)));
            assert!(matches!(
                volume.apply(),
                FsGroupOutcome::AllInodesMatch { .. }
            ));
        }
        let outcome = volume.apply_asking(&other.on);
        assert!(matches!(outcome, FsGroupOutcome::Applied(_)), "{outcome}");
    });
}

/// It has no name any more, but whoever has it open may give it one.
#[test]
fn an_open_file_without_a_name_counts() {
    in_own_mount_namespace("inodes::an_open_file_without_a_name_counts", || {
        for fstype in asked() {
            let volume = Volume::new(fstype, &[]);
            let path = volume.root().join("file");
            let file = fs::File::create(&path).expect("a file");
            let _ = volume.apply();
            assert!(
                matches!(volume.apply(), FsGroupOutcome::AllInodesMatch { .. }),
                "{fstype}"
            );
            fs::remove_file(&path).expect("it is removed");
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
fn an_ext4_that_grew_under_its_mount_is_asked_for_all_of_it() {
    in_own_mount_namespace(
        "inodes::an_ext4_that_grew_under_its_mount_is_asked_for_all_of_it",
        || {
            let volume = Volume::new("ext4", &["-b", "1024", "-g", "1024"]);
            let before = fs::File::options().write(true).open(volume.image.path());
            before
                .expect("the image")
                .set_len(96 << 20)
                .expect("it grows");
            run(Command::new("losetup")
                .arg("--set-capacity")
                .arg(volume.on.path()));
            run(Command::new("resize2fs").arg(volume.on.path()));
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

/// As after a crash: what its journal has was brought to the tables by the mount.
#[test]
fn an_ext4_whose_journal_was_replayed_is_asked_as_any_other() {
    in_own_mount_namespace(
        "inodes::an_ext4_whose_journal_was_replayed_is_asked_as_any_other",
        || {
            let first = Volume::new("ext4", &[]);
            for file in 0..100 {
                fs::write(first.root().join(file.to_string()), "").expect("a file");
            }
            let _ = first.apply();
            run(Command::new("sync").arg("--file-system").arg(first.root()));
            let crashed = Volume::of("ext4", Image::clone_of(&first.image));
            let outcome = crashed.apply();
            assert!(
                matches!(outcome, FsGroupOutcome::AllInodesMatch { inodes: 102, .. }),
                "{outcome}"
            );
        },
    );
}

#[test]
fn a_deadline_that_has_passed_stops_those_who_ask_too() {
    in_own_mount_namespace(
        "inodes::a_deadline_that_has_passed_stops_those_who_ask_too",
        || {
            for fstype in ["ext4", "xfs"] {
                let volume = Volume::new(fstype, &[]);
                let _ = volume.apply();
                let past = Deadline::after(std::time::Duration::ZERO);
                let outcome = volume.try_apply(&volume.on, past);
                assert!(
                    matches!(outcome, Err(FsGroupError::Stopped { .. })),
                    "{fstype}: {outcome:?}"
                );
            }
        },
    );
}

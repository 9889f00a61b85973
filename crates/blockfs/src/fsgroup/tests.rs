use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use super::*;

const GROUP: u32 = 2000;

/// Returns a directory with a hundred files in ten directories.
fn tree() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a temporary directory");
    for directory in 0..10 {
        let directory = root.path().join(directory.to_string());
        fs::create_dir(&directory).expect("a directory");
        for file in 0..10 {
            fs::write(directory.join(file.to_string()), "").expect("a file");
        }
    }
    root
}

/// Returns the counts of the walk; `None` if there was no walk because the root matches.
fn run_walk(
    root: &File,
    group: u32,
    policy: FsGroupChangePolicy,
    check_continue: ContinueCheck<'_>,
) -> Result<Option<EntryCounts>, FsGroupError> {
    let request = FsGroupRequest {
        group,
        policy,
        device: None,
        in_use: false,
    };
    match run(root.as_fd(), &request, check_continue)? {
        UntimedOutcome::RootMatches => Ok(None),
        UntimedOutcome::Applied(counts) => Ok(Some(counts)),
        other => panic!("no walk: {other:?}"),
    }
}

/// Runs a walk that stops before entry number `last + 1`.
fn run_until(
    root: &tempfile::TempDir,
    policy: FsGroupChangePolicy,
    last: u64,
) -> Result<Option<EntryCounts>, FsGroupError> {
    let fd = File::open(root.path()).expect("the root opens");
    run_walk(&fd, GROUP, policy, &mut |counts| {
        if counts.entries < last {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })
}

fn root_group(root: &tempfile::TempDir) -> u32 {
    fs::metadata(root.path()).expect("the root is there").gid()
}

#[test]
fn a_stopped_walk_does_not_change_the_root_and_can_be_resumed() {
    for last in [0, 1, 50, 109, 110] {
        let root = tree();
        let error = run_until(&root, FsGroupChangePolicy::Always, last).expect_err("stopped");
        let FsGroupError::Stopped { counts, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((counts.entries, counts.changed), (last, last));
        assert_ne!(root_group(&root), GROUP, "stopped after {last}");

        let rest = run_until(&root, FsGroupChangePolicy::OnRootMismatch, u64::MAX);
        let rest = rest.expect("not stopped").expect("the root doesn't match");
        assert_eq!((rest.entries, rest.changed), (111, 111 - last));
        assert_eq!(root_group(&root), GROUP);

        let repeated = run_until(&root, FsGroupChangePolicy::OnRootMismatch, 0);
        assert_eq!(repeated.expect("nothing to do"), None);
    }
}

/// Several threads walk. They all have ended when the walk returns, so its counts are complete and nothing changes
/// afterwards.
#[test]
fn a_stopped_large_walk_counts_all_threads() {
    const FILES: usize = 60;
    let root = tempfile::tempdir().expect("a temporary directory");
    let mut entries = vec![];
    for directory in 0..60 {
        let directory = root.path().join(directory.to_string());
        fs::create_dir(&directory).expect("a directory");
        entries.push(directory);
    }
    for file in 0..60 * FILES {
        let file = entries[file % 60].join(file.to_string());
        fs::write(&file, "").expect("a file");
        entries.push(file);
    }
    let changed = || {
        let groups = entries.iter().map(fs::metadata);
        let changed =
            groups.filter(|entry| entry.as_ref().is_ok_and(|metadata| metadata.gid() == GROUP));
        changed.count() as u64
    };
    let mut before = 0;
    for last in [300, 1000, 3000] {
        let error = run_until(&root, FsGroupChangePolicy::Always, last).expect_err("stopped");
        let FsGroupError::Stopped { counts, .. } = error else {
            panic!("{error}");
        };
        assert!(counts.entries >= last, "{counts:?}");
        assert_eq!(counts.changed, changed() - before);
        assert_ne!(root_group(&root), GROUP, "stopped after {last}");
        before = changed();
    }
    let policy = FsGroupChangePolicy::OnRootMismatch;
    let rest = run_until(&root, policy, u64::MAX).expect("not stopped");
    let rest = rest.expect("the root doesn't match");
    let all = entries.len() as u64 + 1;
    assert_eq!((rest.entries, rest.changed), (all, all - before));
    assert_eq!(root_group(&root), GROUP);
}

#[test]
fn the_message_of_a_stopped_walk_says_how_far_it_got() {
    let root = tree();
    let error = run_until(&root, FsGroupChangePolicy::Always, 42).expect_err("stopped");
    let message = error.to_string();
    let start =
        "fsGroup 2000: stopped at the deadline after 42 entries, 42 of them changed; hint: ";
    assert!(message.starts_with(start), "{message}");
}

/// A tree that is deeper than the number of directories that a walk keeps open. Each level has other directories too,
/// which are in the queue while the walk is below, in whatever order directories are entered. There are so few entries
/// that no helper is started, and the callback is called for each entry.
struct DeepTree {
    root: tempfile::TempDir,
}

impl DeepTree {
    const LEVELS: u64 = 40;
    /// Number of other directories on each level.
    const SIBLINGS: u64 = 4;
    /// Number of entries, including the root and a file.
    const ENTRIES: u64 = Self::LEVELS * (1 + Self::SIBLINGS) + 2;

    fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let tree = Self { root };
        let mut innermost = tree.volume();
        for _ in 0..Self::LEVELS {
            fs::create_dir_all(&innermost).expect("a deep directory");
            // The siblings have lower and higher inode numbers than "d".
            for name in ["0", "1", "d", "2", "3"] {
                fs::create_dir(innermost.join(name)).expect("a directory");
            }
            innermost.push("d");
        }
        fs::write(innermost.join("file"), "").expect("a file");
        tree
    }

    /// Returns the root of the volume. It is several levels below the temporary directory, so that a walk that reopens
    /// a wrong directory changes nothing else as root.
    fn volume(&self) -> std::path::PathBuf {
        self.root.path().join("a/b/c/volume")
    }

    /// Returns the path of the innermost file. `names` replace the first names on the path.
    fn file(&self, names: &[&str]) -> std::path::PathBuf {
        let levels = usize::try_from(Self::LEVELS).unwrap() - names.len();
        let path = names
            .iter()
            .copied()
            .chain(std::iter::repeat_n("d", levels));
        let path: std::path::PathBuf = path.collect();
        self.volume().join(path).join("file")
    }
}

/// Closed directories are reopened by their names. After a directory was moved, its names lead to another directory or
/// nowhere. Another pass handles the entries that are left in it.
#[test]
fn a_directory_moved_during_the_walk_is_walked_again() {
    let tree = DeepTree::new();
    let root = tree.volume();
    let fd = File::open(&root).expect("the root opens");
    let file = tree.file(&[]);
    let mut moved = 0;
    let result = run_walk(&fd, GROUP, FsGroupChangePolicy::Always, &mut |_| {
        if fs::metadata(&file).is_ok_and(|file| file.gid() == GROUP) {
            fs::rename(root.join("d/d/d"), root.join("d/moved")).expect("the directory is moved");
            moved += 1;
        }
        ControlFlow::Continue(())
    });
    let counts = result
        .expect("the directory is found")
        .expect("the policy is Always");
    assert_eq!(
        (moved, counts.changed),
        (1, DeepTree::ENTRIES),
        "each entry once"
    );
    assert!(counts.entries > DeepTree::ENTRIES, "{counts:?}");
    assert_eq!(fd.metadata().expect("the root is there").gid(), GROUP);
}

#[test]
fn the_walk_fails_if_a_directory_is_moved_in_each_pass() {
    let tree = DeepTree::new();
    let root = tree.volume();
    let fd = File::open(&root).expect("the root opens");
    let mut names = ["d/moved", "d/d"];
    let mut moved = 0;
    let result = run_walk(&fd, GROUP, FsGroupChangePolicy::Always, &mut |_| {
        let file = tree.file(&names[1].split('/').collect::<Vec<_>>());
        if fs::metadata(&file).is_ok_and(|file| file.gid() == GROUP) {
            std::os::unix::fs::chown(&file, None, Some(0)).expect("the next pass changes it");
            fs::rename(root.join(names[1]), root.join(names[0])).expect("the directory is moved");
            names.swap(0, 1);
            moved += 1;
        }
        ControlFlow::Continue(())
    });
    let error = result.expect_err("the directory is moved in each pass");
    assert!(
        matches!(error, FsGroupError::KeepsChanging { .. }),
        "{error}"
    );
    assert_eq!(moved, MAX_PASSES);
    assert_ne!(fd.metadata().expect("the root is there").gid(), GROUP);
}

#[test]
fn progress_is_displayed_on_one_line() {
    let counts = EntryCounts {
        entries: 1200,
        changed: 300,
        ..EntryCounts::default()
    };
    let elapsed = Duration::from_millis(31_400);
    let mut progress = WalkProgress { counts, elapsed };
    assert_eq!(
        progress.to_string(),
        "1200 entries checked, 300 changed, in 31 s"
    );
    progress.counts.immutable = 2;
    progress.counts.read_only = 3;
    progress.counts.other_mounts = 1;
    assert_eq!(
        progress.to_string(),
        "1200 entries checked, 300 changed, 2 immutable and left unchanged, \
         3 in read-only subvolumes and left unchanged, 1 other mounts skipped, in 31 s"
    );
    assert_eq!(
        FsGroupOutcome::Applied(progress).to_string(),
        progress.to_string()
    );
    let inodes = 1200;
    let outcome = FsGroupOutcome::AllInodesMatch { inodes, elapsed };
    assert_eq!(
        outcome.to_string(),
        "all 1200 inodes already have the group and mode, in 31 s"
    );
}

#[test]
fn the_group_id_that_means_no_change_is_refused() {
    let root = tree();
    let fd = File::open(root.path()).expect("the root opens");
    let policy = FsGroupChangePolicy::Always;
    let result = run_walk(&fd, u32::MAX, policy, &mut |_| ControlFlow::Continue(()));
    assert!(
        matches!(result, Err(FsGroupError::InvalidGroup { .. })),
        "{result:?}"
    );
}

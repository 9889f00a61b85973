use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use super::*;

const GROUP: u32 = 2000;

/// A hundred files in ten directories.
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

/// What a walk counts; `None` where there is none, as the root matches.
fn walked(
    root: &File,
    group: u32,
    policy: FsGroupChangePolicy,
    observe: Observe<'_>,
) -> Result<Option<EntryCounts>, FsGroupError> {
    let order = FsGroupRequest {
        group,
        policy,
        device: None,
        in_use: false,
    };
    match run(root.as_fd(), &order, observe)? {
        Found::RootMatches => Ok(None),
        Found::Walked(counts) => Ok(Some(counts)),
        other => panic!("it was to be walked: {other:?}"),
    }
}

/// Stops before entry number `last + 1`.
fn run_until(
    root: &tempfile::TempDir,
    policy: FsGroupChangePolicy,
    last: u64,
) -> Result<Option<EntryCounts>, FsGroupError> {
    let fd = File::open(root.path()).expect("the root opens");
    walked(&fd, GROUP, policy, &mut |counts| {
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
fn a_stopped_walk_leaves_the_root_and_can_be_resumed() {
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

        let again = run_until(&root, FsGroupChangePolicy::OnRootMismatch, 0);
        assert_eq!(again.expect("nothing to do"), None);
    }
}

/// Several threads are at it, and have all ended when it returns: what it says it changed is all that
/// changes.
#[test]
fn a_stopped_large_walk_counts_all_threads_and_leaves_the_root() {
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
        let changed = groups.filter(|entry| entry.as_ref().is_ok_and(|it| it.gid() == GROUP));
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
fn the_sentence_of_a_stopped_walk_says_how_far_it_got() {
    let root = tree();
    let error = run_until(&root, FsGroupChangePolicy::Always, 42).expect_err("stopped");
    let sentence = error.to_string();
    let start =
        "fsGroup 2000: stopped at the deadline after 42 entries, 42 of them changed; hint: ";
    assert!(sentence.starts_with(start), "{sentence}");
}

/// A directory so deep that not all above it are kept open, and others on each level that wait while
/// the walk is below, in whatever order directories are entered. So few that nobody helps: the caller
/// is asked about each entry.
struct Deep {
    root: tempfile::TempDir,
}

impl Deep {
    const LEVELS: u64 = 40;
    const BESIDE: u64 = 4;
    /// With the root and a file.
    const ALL: u64 = Self::LEVELS * (1 + Self::BESIDE) + 2;

    fn new() -> Self {
        let root = tempfile::tempdir().expect("a temporary directory");
        let deep = Self { root };
        let mut innermost = deep.volume();
        for _ in 0..Self::LEVELS {
            fs::create_dir_all(&innermost).expect("a deep directory");
            // Inode numbers below its own, and above.
            for name in ["0", "1", "d", "2", "3"] {
                fs::create_dir(innermost.join(name)).expect("a directory");
            }
            innermost.push("d");
        }
        fs::write(innermost.join("file"), "").expect("a file");
        deep
    }

    /// Well inside: a walk that took another directory for the right one could be anywhere, and change
    /// what it finds there, as root.
    fn volume(&self) -> std::path::PathBuf {
        self.root.path().join("a/b/c/volume")
    }

    /// The innermost file, where `names` are the way's first ones.
    fn file(&self, names: &[&str]) -> std::path::PathBuf {
        let levels = usize::try_from(Self::LEVELS).unwrap() - names.len();
        let way = names
            .iter()
            .copied()
            .chain(std::iter::repeat_n("d", levels));
        let way: std::path::PathBuf = way.collect();
        self.volume().join(way).join("file")
    }
}

/// The way back is by names: where a directory has been moved they lead to another one or to none, and
/// neither is it. What was to be done there is done by another pass.
#[test]
fn a_directory_moved_during_the_walk_is_walked_again() {
    let deep = Deep::new();
    let root = deep.volume();
    let fd = File::open(&root).expect("the root opens");
    let file = deep.file(&[]);
    let mut moved = 0;
    let walked = walked(&fd, GROUP, FsGroupChangePolicy::Always, &mut |_| {
        if fs::metadata(&file).is_ok_and(|file| file.gid() == GROUP) {
            fs::rename(root.join("d/d/d"), root.join("d/moved")).expect("it is moved");
            moved += 1;
        }
        ControlFlow::Continue(())
    });
    let counts = walked.expect("it is found").expect("the policy is Always");
    assert_eq!((moved, counts.changed), (1, Deep::ALL), "each entry once");
    assert!(counts.entries > Deep::ALL, "{counts:?}");
    assert_eq!(fd.metadata().expect("the root is there").gid(), GROUP);
}

/// Whoever moves it in each pass keeps the walk from its end, but not for ever.
#[test]
fn a_directory_moved_in_each_pass_ends_the_walk() {
    let deep = Deep::new();
    let root = deep.volume();
    let fd = File::open(&root).expect("the root opens");
    let mut names = ["d/moved", "d/d"];
    let mut moved = 0;
    let walked = walked(&fd, GROUP, FsGroupChangePolicy::Always, &mut |_| {
        let file = deep.file(&names[1].split('/').collect::<Vec<_>>());
        if fs::metadata(&file).is_ok_and(|file| file.gid() == GROUP) {
            std::os::unix::fs::chown(&file, None, Some(0)).expect("the next pass changes it");
            fs::rename(root.join(names[1]), root.join(names[0])).expect("it is moved");
            names.swap(0, 1);
            moved += 1;
        }
        ControlFlow::Continue(())
    });
    let error = walked.expect_err("it never stands still");
    assert!(
        matches!(error, FsGroupError::KeepsChanging { .. }),
        "{error}"
    );
    assert_eq!(moved, PASSES);
    assert_ne!(fd.metadata().expect("the root is there").gid(), GROUP);
}

#[test]
fn progress_is_a_line_for_the_log() {
    let counts = EntryCounts {
        entries: 1200,
        changed: 300,
        ..EntryCounts::default()
    };
    let elapsed = Duration::from_millis(31_400);
    let mut progress = WalkProgress { counts, elapsed };
    assert_eq!(
        progress.to_string(),
        "1200 entries looked at, 300 changed, in 31 s"
    );
    progress.counts.immutable = 2;
    progress.counts.read_only = 3;
    progress.counts.other_mounts = 1;
    assert_eq!(
        progress.to_string(),
        "1200 entries looked at, 300 changed, 2 immutable and left as they were, \
         3 in read-only subvolumes and left as they were, 1 other mounts left out, in 31 s"
    );
    assert_eq!(
        FsGroupOutcome::Applied(progress).to_string(),
        progress.to_string()
    );
    let inodes = 1200;
    let right = FsGroupOutcome::AllInodesMatch { inodes, elapsed };
    assert_eq!(
        right.to_string(),
        "all 1200 inodes are right already, in 31 s"
    );
}

#[test]
fn the_group_id_that_means_no_change_is_refused() {
    let root = tree();
    let fd = File::open(root.path()).expect("the root opens");
    let policy = FsGroupChangePolicy::Always;
    let result = walked(&fd, u32::MAX, policy, &mut |_| ControlFlow::Continue(()));
    assert!(
        matches!(result, Err(FsGroupError::InvalidGroup { .. })),
        "{result:?}"
    );
}

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
) -> Result<Option<Counts>, FsGroupError> {
    let order = Order {
        group,
        policy,
        device: None,
    };
    match run(root.as_fd(), &order, observe)? {
        Found::RootMatches => Ok(None),
        Found::Walked(counts) => Ok(Some(counts)),
        Found::AllRight(_) => panic!("no device was asked"),
    }
}

/// Stops before entry number `last + 1`.
fn run_until(
    root: &tempfile::TempDir,
    policy: FsGroupChangePolicy,
    last: u64,
) -> Result<Option<Counts>, FsGroupError> {
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
fn a_walk_stopped_anywhere_leaves_the_root_and_a_second_one_does_the_rest() {
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
fn a_large_walk_stopped_anywhere_tells_what_every_thread_did_and_leaves_the_root() {
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

/// Deeper than directories are kept open, so that the way back is by names: where a directory has been
/// moved they lead to another one or to none, and neither is it.
#[test]
fn a_directory_moved_during_the_walk_stops_it_and_a_second_one_does_the_rest() {
    // So few that nobody helps: the caller is asked about each entry.
    const LEVELS: u64 = 60;
    // Some of them wait while the walk is below, in whatever order directories are entered.
    const BESIDE: u64 = 3;
    let outer = tempfile::tempdir().expect("a temporary directory");
    // Well inside: a walk that took another directory for the right one could be anywhere, and
    // change what it finds there, as root.
    let root = outer.path().join("a/b/c/volume");
    let mut innermost = root.clone();
    for _ in 0..LEVELS {
        innermost.push("d");
        fs::create_dir_all(&innermost).expect("a deep directory");
        for n in 0..BESIDE {
            fs::create_dir(innermost.with_file_name(n.to_string())).expect("one beside it");
        }
    }
    innermost.push("file");
    fs::write(&innermost, "").expect("a file");
    let (from, to) = (root.join("d/d/d"), root.join("d/moved"));
    let fd = File::open(&root).expect("the root opens");
    let policy = FsGroupChangePolicy::Always;

    let moved = walked(&fd, GROUP, policy, &mut |_| {
        if fs::metadata(&innermost).is_ok_and(|file| file.gid() == GROUP) {
            fs::rename(&from, &to).expect("it is moved");
        }
        ControlFlow::Continue(())
    });

    let error = moved.expect_err("the way back is another");
    assert!(matches!(error, FsGroupError::Moved { .. }), "{error}");
    assert_ne!(fd.metadata().expect("the root is there").gid(), GROUP);
    let go_on = &mut |_: &Counts| ControlFlow::Continue(());
    let rest = walked(&fd, GROUP, policy, go_on);
    let rest = rest
        .expect("nothing moves any more")
        .expect("the policy is Always");
    assert_eq!(rest.entries, LEVELS * (1 + BESIDE) + 2);
    assert_eq!(fd.metadata().expect("the root is there").gid(), GROUP);
}

#[test]
fn progress_is_a_line_for_the_log() {
    let counts = Counts {
        entries: 1200,
        changed: 300,
        ..Counts::default()
    };
    let elapsed = Duration::from_millis(31_400);
    let mut progress = Progress { counts, elapsed };
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
    assert_eq!(Outcome::Applied(progress).to_string(), progress.to_string());
    let inodes = 1200;
    let right = Outcome::AllRight { inodes, elapsed };
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
        matches!(result, Err(FsGroupError::NotAGroup { .. })),
        "{result:?}"
    );
}

//! The directory that a test works in.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::cleanup::{Cleanup, OperationGuard};
use crate::wait::holds_within;
use crate::{host, mounts};

/// A temporary directory with mode 0755. Its name is short, because the path of a Unix socket in it has to fit into 107
/// bytes. On drop everything below it is unmounted and it is removed. `RUNCRUST_KEEP=1` keeps it.
///
/// Declare it before the values that have files in it, so that it is dropped last.
#[derive(Debug)]
pub struct TestDir {
    path: PathBuf,
    _cleanup: Cleanup,
}

impl TestDir {
    /// Creates the directory. Panics with the reason if tests can't run in this process: it is not root, or is in a
    /// mount namespace in which one of the runtimes does not work.
    #[expect(
        clippy::new_without_default,
        reason = "a directory on the disk is no default value"
    )]
    pub fn new() -> Self {
        host::check();
        let _operation = OperationGuard::begin();
        Self::guard(&new_directory("rc"))
    }

    /// Creates the directory where only root can change anything, which is not the case below `/tmp`.
    pub fn root_only() -> Self {
        host::check();
        let _operation = OperationGuard::begin();
        Self::guard(&new_directory_in(Path::new("/var/lib"), "rc"))
    }

    /// Creates the test's directory at this path, where nothing may exist.
    pub fn at(path: &Path) -> Self {
        let _operation = OperationGuard::begin();
        let parent = path.parent().expect("a directory's parent");
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(path))
            .unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
        Self::guard(path)
    }

    fn guard(made: &Path) -> Self {
        // Mount tables have canonical paths.
        let path = made.canonicalize().expect("the directory was just made");
        let owned = path.clone();
        Self {
            path,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Returns the absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, below: impl AsRef<Path>) -> PathBuf {
        self.path.join(below)
    }

    /// Creates a directory below this one, with its parents, and returns its path.
    pub fn subdir(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.join(below);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

/// Creates a new temporary directory. A directory of an earlier process with the same pid may exist, so names are tried
/// until one is free.
pub fn new_directory(prefix: &str) -> PathBuf {
    new_directory_in(&std::env::temp_dir(), prefix)
}

fn new_directory_in(parent: &Path, prefix: &str) -> PathBuf {
    loop {
        let path = parent.join(unique(prefix));
        match fs::create_dir(&path) {
            Ok(()) => return path,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("mkdir {}: {error}", path.display()),
        }
    }
}

/// Returns a name that no other running test uses, in any process: `<prefix>-<process>-<n>`.
pub fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", process_name())
}

/// Returns a name for this process that no other running process of the machine has: `t<pid>`, or `t<pid>n<namespace>`
/// in a pid namespace of its own (`make engines`). Control groups and loop devices belong to the whole machine.
pub fn process_name() -> String {
    /// `PROC_PID_INIT_INO` of the kernel's `proc_ns.h`: the inode of the initial pid namespace.
    const MACHINE: u64 = 0xefff_fffc;
    let pid = process::id();
    let namespace = fs::metadata("/proc/self/ns/pid")
        .expect("/proc is mounted")
        .ino();
    match namespace.abs_diff(MACHINE) {
        0 => format!("t{pid}"),
        other => format!("t{pid}n{other}"),
    }
}

/// Unmounts everything below `root` and removes it. If a mount remains, nothing is removed, because `remove_dir_all`
/// would delete the files in that mount.
fn remove(root: &Path) -> Vec<String> {
    if std::env::var_os("RUNCRUST_KEEP").is_some() {
        return vec![format!("kept {}", root.display())];
    }
    let mut errors = mounts::unmount_below(root);
    let left = host::mounts_below(root);
    if left.is_empty() {
        // When the process is interrupted, the test may still write here for a moment.
        let mut result = Ok(());
        holds_within(Duration::from_secs(5), || {
            result = fs::remove_dir_all(root);
            result.is_ok()
        });
        errors.extend(
            result
                .err()
                .map(|error| format!("rm -r {}: {error}", root.display())),
        );
    } else {
        errors.push(format!("not removed, still mounted: {left:?}"));
    }
    errors
}

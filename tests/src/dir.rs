//! The one directory that a test works in.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::cleanup::{Cleanup, OperationGuard};
use crate::wait::holds_within;
use crate::{host, mounts};

/// A temporary directory, mode 0755, under a short name (a Unix socket's path below it has to fit
/// into 107 bytes). When dropped, mounts left below it are taken off, and it is removed;
/// `RUNCRUST_KEEP=1` keeps it.
///
/// Declare it before everything that stands in it: it then goes last.
#[derive(Debug)]
pub struct TestDir {
    path: PathBuf,
    _cleanup: Cleanup,
}

impl TestDir {
    /// Makes the directory, after a check that tests can run at all on this machine.
    #[expect(
        clippy::new_without_default,
        reason = "a directory on the disk is no default value"
    )]
    pub fn new() -> Self {
        host::check();
        let _operation = OperationGuard::begin();
        Self::guard(&new_directory("rc"))
    }

    /// The same where only root can change anything, which isn't so below `/tmp`.
    pub fn root_only() -> Self {
        host::check();
        let _operation = OperationGuard::begin();
        Self::guard(&new_directory_in(Path::new("/var/lib"), "rc"))
    }

    /// A directory of the test's own at another place, where there is none yet.
    pub fn at(path: &Path) -> Self {
        let _operation = OperationGuard::begin();
        let parent = path.parent().expect("a directory's parent");
        fs::create_dir_all(parent)
            .and_then(|()| fs::create_dir(path))
            .unwrap_or_else(|error| panic!("mkdir {}: {error}", path.display()));
        Self::guard(path)
    }

    fn guard(made: &Path) -> Self {
        // Mount tables name real paths.
        let path = made.canonicalize().expect("the directory was just made");
        let owned = path.clone();
        Self {
            path,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Its absolute path, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path below it.
    pub fn join(&self, below: impl AsRef<Path>) -> PathBuf {
        self.path.join(below)
    }

    /// A directory below it, made with its parents where missing.
    pub fn subdir(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.join(below);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

/// Makes a directory of this process's own among the temporary ones. Others may stand under a name
/// from an earlier life of this pid.
pub(crate) fn new_directory(prefix: &str) -> PathBuf {
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

/// A name that no other test of any process uses now: `<prefix>-<process>-<n>`.
pub(crate) fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", process_name())
}

/// A name of this process, which no other running process of the machine has: `t<pid>`, and in a pid
/// namespace of its own (`make engines`), `t<pid>n<namespace>`. cgroups and loop devices are the
/// machine's.
pub fn process_name() -> String {
    /// `PROC_PID_INIT_INO` of the kernel's `proc_ns.h`: the inode of the machine's own pid namespace.
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

/// Takes off what is mounted below `root` and removes it. A mount that stays would lead
/// `remove_dir_all` into other people's files, so then nothing is removed.
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

//! The crust directory, written as `crust_ops` does (docs/protocol.md, The crust directory).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use runcrust_tests::cleanup::Cleanup;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// The entry of a staged volume, or two entries if the target path leads over a symbolic link. Unstaged when dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The entry of the given path.
    given: PathBuf,
    /// The entry of the resolved path, if that differs.
    resolved: Option<PathBuf>,
    _cleanup: Cleanup,
}

impl Entry {
    /// Stages a volume. The entry of the resolved path is written first, as the protocol requires.
    pub(crate) fn write(crust_root: &Path, target: &Path, info: &Value) -> Self {
        let given = crust_root.join(digest(target));
        let real = target.canonicalize().expect("an existing target path");
        let resolved = (real != target).then(|| crust_root.join(digest(&real)));
        let both: Vec<PathBuf> = [Some(&given), resolved.as_ref()]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let owned = both.clone();
        let cleanup = Cleanup::register(move || {
            for entry in &owned {
                let _ = fs::remove_dir_all(entry).or_else(|_| fs::remove_file(entry));
            }
            Vec::new()
        });
        for entry in both.iter().rev() {
            make(entry, info.to_string().as_bytes());
        }
        Self {
            given,
            resolved,
            _cleanup: cleanup,
        }
    }

    /// Returns the entry's directory of the given path.
    pub(crate) fn path(&self) -> &Path {
        &self.given
    }

    /// Returns the `runtime-cli` file of each directory of the entry.
    pub(crate) fn runtime_clis(&self) -> Vec<PathBuf> {
        let both = [Some(&self.given), self.resolved.as_ref()];
        let both = both.into_iter().flatten();
        both.map(|entry| entry.join("runtime-cli")).collect()
    }

    pub(crate) fn info(&self) -> PathBuf {
        self.given.join("mountInfo.json")
    }

    pub(crate) fn runtime_cli(&self) -> PathBuf {
        self.given.join("runtime-cli")
    }
}

/// Returns the name of a target path's entry.
fn digest(target: &Path) -> String {
    let digest = Sha256::digest(target.as_os_str().as_encoded_bytes());
    let name = digest.iter().map(|byte| format!("{byte:02x}"));
    name.collect::<String>()
}

/// Writes an entry under a name that begins with a dot, and renames it, so that nobody sees a partial entry.
fn make(entry: &Path, info: &[u8]) {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let root = entry.parent().expect("the crust directory");
    let built = root.join(format!(".conformance.{}.{number}", process::id()));
    let made = DirBuilder::new()
        .mode(0o700)
        .create(&built)
        .and_then(|()| {
            let mut options = OpenOptions::new();
            let file = options.write(true).create_new(true).mode(0o600);
            let mut file = file.open(built.join("mountInfo.json"))?;
            file.write_all(info)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&built, entry))
        .and_then(|()| File::open(root)?.sync_all());
    made.unwrap_or_else(|error| panic!("staging {}: {error}", entry.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entrys_name_is_what_sha256sum_prints() {
        let path = Path::new("/var/lib/kubelet/pods/1/volumes/kubernetes.io~csi/pv/mount");
        let expected = "079c2ccf22e129076d869e165e75554ed5ff77417e1fa584c0415e5e168bf4e5";
        assert_eq!(digest(path), expected);
    }
}

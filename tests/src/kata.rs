//! Volumes that CSI drivers stage for Kata Containers.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cleanup::{Cleanup, OperationGuard};
use crate::node::utf8;

/// Kata's directory. It is shared by the whole machine; entries differ because the tests' paths do.
const ROOT: &str = "/run/kata-containers/shared/direct-volumes";

/// An entry in Kata's directory. It is removed on drop, and the directory with the last entry.
#[derive(Debug)]
#[must_use]
pub struct KataEntry {
    path: PathBuf,
    _cleanup: Cleanup,
}

impl KataEntry {
    /// Adds a volume as Kata's Go code does for `direct-volume add` and for CSI drivers.
    pub fn add(volume_path: &Path, info: &Value) -> Self {
        let entry = Self::at(volume_path);
        entry.write(&info.to_string());
        entry
    }

    /// Makes a guard for an entry that need not exist yet.
    pub fn at(volume_path: &Path) -> Self {
        let path = Path::new(ROOT).join(name(utf8(volume_path)));
        let owned = path.clone();
        Self {
            path,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Returns the entry's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the entry's `mountInfo.json`.
    pub fn info(&self) -> PathBuf {
        self.path.join("mountInfo.json")
    }

    /// Writes or overwrites `mountInfo.json`.
    pub fn write(&self, info: &str) {
        let _operation = OperationGuard::begin();
        // Another test may have removed the empty directory.
        for _ in 0..100 {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.path);
            match made.and_then(|()| fs::write(self.info(), info)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result.unwrap_or_else(|error| panic!("{:?}: {error}", self.path)),
            }
        }
        panic!(
            "{:?}: its directory was removed repeatedly by other tests",
            self.path
        );
    }

    /// Removes the entry as a driver does (`os.RemoveAll`).
    pub fn remove(&self) {
        fs::remove_dir_all(&self.path).expect("an entry");
    }
}

/// Encodes a path with a program that shares no code with the product.
fn name(path: &str) -> String {
    let mut encode = Command::new("basenc");
    encode.args(["--base64url", "--wrap=0"]);
    let piped = encode.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.spawn().expect("basenc of coreutils");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(path.as_bytes()).expect("write to basenc");
    drop(input);
    let output = child.wait_with_output().expect("basenc's output");
    String::from_utf8(output.stdout).expect("base64 is ASCII")
}

fn remove(entry: &Path) -> Vec<String> {
    let result = fs::remove_dir_all(entry);
    // This fails for directories that are not empty.
    for directory in Path::new(ROOT).ancestors().take(3) {
        let _ = fs::remove_dir(directory);
    }
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            vec![format!("rm -r {}: {error}", entry.display())]
        }
        _ => Vec::new(),
    }
}

//! Volumes as CSI drivers stage them for Kata Containers.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cleanup::{Cleanup, OperationGuard};
use crate::node::utf8;

/// Kata's constant. The directory is the machine's: entries are told apart by their tests' paths.
const ROOT: &str = "/run/kata-containers/shared/direct-volumes";

/// An entry in Kata's directory; removed when dropped, and the directory with the last one.
#[derive(Debug)]
#[must_use]
pub struct KataEntry {
    path: PathBuf,
    _cleanup: Cleanup,
}

impl KataEntry {
    /// Adds a volume as Kata's Go code does (`direct-volume add`, and CSI drivers).
    pub fn add(volume_path: &Path, info: &Value) -> Self {
        let entry = Self::at(volume_path);
        entry.write(&info.to_string());
        entry
    }

    /// The guard of an entry that may come to be.
    pub fn at(volume_path: &Path) -> Self {
        let path = Path::new(ROOT).join(name(utf8(volume_path)));
        let owned = path.clone();
        Self {
            path,
            _cleanup: Cleanup::register(move || remove(&owned)),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `mountInfo.json`.
    pub fn info(&self) -> PathBuf {
        self.path.join("mountInfo.json")
    }

    /// Writes `mountInfo.json` over what is there.
    pub fn write(&self, info: &str) {
        let _operation = OperationGuard::begin();
        // Another test may just have removed the directory, as the last one to leave.
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
        panic!("{:?}: its directory is removed again and again", self.path);
    }

    /// Removes it as the driver does (`os.RemoveAll`).
    pub fn remove(&self) {
        fs::remove_dir_all(&self.path).expect("an entry");
    }
}

/// By a program that shares nothing with the product.
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
    // Only what is empty.
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

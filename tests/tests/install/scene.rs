//! A directory that acts as a node's root, and calls of runcrust for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::node::utf8;
use runcrust_tests::{Run, TestDir, binary};

const PROGRAM: &str = "#!/bin/sh\n";

/// A directory that acts as a node's root.
pub(crate) struct Scene {
    pub(crate) dir: TestDir,
}

impl Scene {
    /// Returns a node with engines, a delegate, and runcrust at `/usr/local/bin/runcrust`.
    pub(crate) fn new() -> Self {
        let scene = Self::without_runcrust();
        for program in ["runcrust", "crust-mount-hook"] {
            scene.write(&format!("usr/local/bin/{program}"), PROGRAM, 0o755);
        }
        scene
    }

    /// Returns a node with engines and a delegate.
    pub(crate) fn without_runcrust() -> Self {
        let scene = Self::empty();
        scene.write("usr/sbin/runc", PROGRAM, 0o755);
        for engine in ["containerd", "crio", "docker"] {
            let unit = format!("usr/lib/systemd/system/{engine}.service");
            scene.write(&unit, "", 0o644);
        }
        scene
    }

    pub(crate) fn empty() -> Self {
        let dir = TestDir::new();
        let _ = dir.subdir("node");
        Self { dir }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("node")
    }

    /// Returns the path on this host of a file of the node.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.at(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// Runs runcrust with this command line and `--root <the node>`.
    pub(crate) fn call(&self, line: &str) -> Run {
        let root = self.root();
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["--root", utf8(&root)]);
        run(&binary("runcrust"), &words)
    }

    /// Runs runcrust like [`Self::call`], with `--program` for the node's own program.
    pub(crate) fn installed(&self, line: &str) -> Run {
        self.call(&format!("{line} --program /usr/local/bin/runcrust"))
    }
}

/// Runs a program with containerd's environment.
pub(crate) fn run(program: &Path, words: &[&str]) -> Run {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin");
    Run::capture(command.args(words))
}

/// Returns path, mode and content of everything below a directory.
pub(crate) fn tree(directory: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let content = if metadata.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        all.push(format!(
            "{} {:o} {content:?}",
            path.display(),
            metadata.mode()
        ));
        if metadata.is_dir() {
            all.extend(tree(&path));
        }
    }
    all.sort();
    all
}

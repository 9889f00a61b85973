//! `make release`: what `deploy/release.sh` changes in a repository, and what is left of it after a failure.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Run, TestDir};

/// A git repository with the files of this one, and a stand-in for the build.
struct Repository {
    dir: TestDir,
    root: PathBuf,
}

impl Repository {
    fn new() -> Self {
        let dir = TestDir::new();
        let root = dir.subdir("repository");
        let workspace = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap()).join("..");
        let script = "cd \"$0\" && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --no-dereference -t \"$1\"";
        let mut copy = Command::new("sh");
        let _ = Run::capture(copy.args(["-c", script]).arg(workspace).arg(&root)).success();
        let repository = Self { dir, root };
        let changes = fs::read_to_string(repository.root.join("CHANGELOG.md")).unwrap();
        let (head, old) = changes.split_once("## [Unreleased]\n").unwrap();
        let (_, old) = old.split_once("\n## [").unwrap();
        let changes = format!("{head}## [Unreleased]\n\n- A change.\n\n## [{old}");
        fs::write(repository.root.join("CHANGELOG.md"), changes).unwrap();
        repository.git("init --quiet --initial-branch main");
        repository.commit();
        repository
    }

    fn git(&self, arguments: &str) -> String {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.com"]);
        git.args(arguments.split(' ')).current_dir(&self.root);
        Run::capture(&mut git).success().stdout.trim().to_owned()
    }

    fn commit(&self) {
        self.git("add --all");
        self.git("commit --quiet --message test");
    }

    /// Runs the script with a shell script in the place of make.
    fn release(&self, version: &str, build: &str) -> Run {
        let make = self.dir.join("make");
        fs::write(&make, format!("#!/bin/sh\n{build}\n")).unwrap();
        fs::set_permissions(&make, Permissions::from_mode(0o755)).unwrap();
        let mut sh = Command::new("sh");
        sh.arg(self.root.join("deploy/release.sh")).arg(version);
        sh.env("MAKE", make);
        for (name, value) in [("NAME", "test"), ("EMAIL", "test@example.com")] {
            sh.env(format!("GIT_AUTHOR_{name}"), value);
            sh.env(format!("GIT_COMMITTER_{name}"), value);
        }
        Run::capture(&mut sh)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.root.join(file)).unwrap()
    }
}

#[test]
fn a_release_is_committed_tagged_and_described() {
    let repository = Repository::new();
    let run = repository
        .release("9.8.7", "test \"$1\" = dist && mkdir -p target/dist")
        .success();
    assert!(run.stdout.contains("git push origin HEAD v9.8.7"), "{run}");
    assert_eq!(repository.git("log -1 --format=%s"), "release: 9.8.7");
    let tagged = repository.git("rev-parse v9.8.7^{commit}");
    assert_eq!(tagged, repository.git("rev-parse HEAD"));
    assert_eq!(repository.git("status --porcelain"), "");
    assert!(
        repository
            .read("Cargo.toml")
            .contains("\nversion = \"9.8.7\"\n")
    );
    let lock = repository.read("Cargo.lock");
    assert!(lock.contains("name = \"runcrust\"\nversion = \"9.8.7\"\n"));
    let daemon_set = repository.read("deploy/kubernetes/base/daemonset.yaml");
    assert!(daemon_set.contains("image: localhost/runcrust:9.8.7"));
    let changes = repository.read("CHANGELOG.md");
    assert!(
        changes.contains("## [Unreleased]\n\n## [9.8.7] - "),
        "{changes}"
    );
    let notes = repository.read("target/dist/RELEASE-NOTES.md");
    assert_eq!(notes.trim(), "- A change.");
}

#[test]
fn a_failed_release_changes_nothing() {
    let repository = Repository::new();
    let before = repository.git("rev-parse HEAD");
    for (version, words) in [
        ("", "VERSION='' is not a version"),
        ("1.2", "VERSION='1.2' is not a version"),
        ("0.0.1", "version 0.0.1 is older than"),
        ("9.8.7", ""),
    ] {
        let run = repository.release(version, "exit 1").failure();
        assert!(run.stderr.contains(words), "{run}");
        assert_eq!(repository.git("rev-parse HEAD"), before, "{version}");
        assert_eq!(repository.git("status --porcelain"), "", "{version}");
        assert_eq!(repository.git("tag"), "", "{version}");
    }
    fs::write(repository.root.join("README.md"), "changed").unwrap();
    let run = repository.release("9.8.7", "true").failure();
    assert!(run.stderr.contains("the working tree has changes"), "{run}");
    assert_eq!(repository.read("README.md"), "changed");
}

#[test]
fn a_change_during_the_build_is_kept() {
    let repository = Repository::new();
    let run = repository
        .release("9.8.7", "echo changed >README.md; exit 1")
        .failure();
    assert!(
        run.stderr.contains("the tree was changed meanwhile"),
        "{run}"
    );
    assert_eq!(repository.read("README.md"), "changed\n");
    assert_eq!(repository.git("log -1 --format=%s"), "release: 9.8.7");
    assert_eq!(repository.git("tag"), "");
}

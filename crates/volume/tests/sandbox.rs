//! Where a sandbox's `/.crust` is found while the sandbox is created. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set their scenes by path"
)]

#[path = "../../blockfs/tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_volume::sandbox::{Sandbox, SandboxError};
use support::{TestMount, in_mount_namespace, run};

/// A process that waits, with mounts of its own, as a container's does.
struct Waiting(Child);

impl Waiting {
    /// What a shell has come to once it has made the mounts.
    fn after(shell: &Path, script: &str) -> Self {
        let mut command = Command::new(shell);
        let script = format!("set -e\n{script}\nexec /busybox sleep 100");
        let unshared = ["unshare", "-m", "/busybox", "sh", "-c", &script];
        let waiting = Self(command.args(unshared).spawn().expect("busybox"));
        let line = format!("/proc/{}/cmdline", waiting.0.id());
        let is_there = || fs::read(&line).is_ok_and(|line| line.ends_with(b"sleep\x00100\0"));
        let comes =
            Deadline::after(Duration::from_secs(60)).poll(|| Ok::<_, ()>(is_there().then_some(())));
        assert_eq!(comes, Ok(Some(())), "{script}");
        waiting
    }

    fn sandbox(&self, rootfs: &Path) -> Result<Sandbox, SandboxError> {
        Sandbox::open_during_create("sandbox-1", self.0.id().cast_signed(), rootfs)
    }

    /// What is in a file as it sees it.
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/root{path}", self.0.id())).ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a directory of a tmpfs the root of this process and of those that it starts: one with a shell, `/rootfs`
/// and a `/.crust` of its own.
fn become_a_host() -> Vec<TestMount> {
    // setns(2) is for a thread whose root is its own.
    crust_blockfs::sys::unshare_mount_namespace().expect("unshare");
    let root = Path::new("/mnt");
    let mut mounts = vec![TestMount::tmpfs(root)];
    for name in [".crust", "proc", "old", "rootfs"] {
        fs::create_dir(root.join(name)).expect("a directory");
    }
    run(Command::new("cp").arg("/bin/busybox").arg(root));
    mounts.push(TestMount::tmpfs(&root.join(".crust")));
    mounts.push(TestMount::bind(Path::new("/proc"), &root.join("proc")));
    rustix::process::pivot_root(root, root.join("old")).expect("pivot_root");
    std::env::set_current_dir("/").expect("the new root");
    mounts
}

fn busybox(applet: &str) -> String {
    format!("/busybox {applet}")
}

#[test]
fn before_the_pivot_it_is_below_the_rootfs() {
    let test = "before_the_pivot_it_is_below_the_rootfs";
    in_mount_namespace(test, || {
        let mounts = become_a_host();
        let (mount, mkdir) = (busybox("mount"), busybox("mkdir"));
        let (rootfs, shell) = (Path::new("/rootfs"), Path::new("/busybox"));
        let none = Waiting::after(shell, "");
        let directory = Waiting::after(shell, &format!("{mkdir} -p /rootfs/.crust"));
        for waiting in [none, directory] {
            let error = waiting.sandbox(rootfs).expect_err("there is none");
            assert!(matches!(error, SandboxError::NoTmpfs { .. }), "{error}");
        }
        let script = format!("{mount} -t tmpfs crust /rootfs/.crust");
        let sandbox = Waiting::after(shell, &script);
        sandbox.sandbox(rootfs).expect("a sandbox");
        assert_eq!(
            sandbox.read("/rootfs/.crust/id").as_deref(),
            Some("sandbox-1")
        );
        assert_eq!(fs::read_dir("/.crust").expect("the host's").count(), 0);
        // What is mounted goes with the namespace.
        std::mem::forget(mounts);
    });
}

#[test]
fn after_the_pivot_it_is_at_the_root() {
    let test = "after_the_pivot_it_is_at_the_root";
    in_mount_namespace(test, || {
        let mounts = become_a_host();
        let [mount, mkdir, cp, pivot, touch, ln] =
            ["mount", "mkdir", "cp", "pivot_root", "touch", "ln"].map(busybox);
        let (rootfs, shell) = (Path::new("/rootfs"), Path::new("/busybox"));
        for there in [
            format!("{mkdir} .crust"),
            format!("{mkdir} .crust; {touch} rootfs"),
            format!("{mkdir} .crust; {ln} -s .crust rootfs"),
            format!("{mkdir} -p .crust rootfs/.crust"),
        ] {
            let script = format!(
                "{mount} -t tmpfs rootfs /rootfs; {cp} /busybox /rootfs; cd /rootfs; {there}; {mkdir} old proc; \
                 {mount} -t tmpfs crust .crust; {pivot} . old"
            );
            let sandbox = Waiting::after(shell, &script);
            // Of the second one the kernel doesn't even look whether it is there.
            for rootfs in [rootfs, Path::new(&format!("/{}", "x".repeat(300)))] {
                let place = sandbox.sandbox(rootfs);
                place.unwrap_or_else(|error| panic!("{there}: {error}"));
                assert_eq!(
                    sandbox.read("/.crust/id").as_deref(),
                    Some("sandbox-1"),
                    "{there}"
                );
            }
        }
        let script = format!(
            "{mount} -t tmpfs rootfs /rootfs; {cp} /busybox /rootfs; cd /rootfs; {mkdir} -p old .crust; {pivot} . old"
        );
        let error = Waiting::after(shell, &script)
            .sandbox(rootfs)
            .expect_err("no tmpfs");
        assert!(matches!(error, SandboxError::NoTmpfs { .. }), "{error}");
        assert_eq!(fs::read_dir("/.crust").expect("the host's").count(), 0);
        std::mem::forget(mounts);
    });
}

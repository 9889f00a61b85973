//! Finding a sandbox's `/.crust` while the sandbox is being created. Needs root.
#![allow(
    clippy::disallowed_methods,
    reason = "tests run tools and set up files by path"
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

/// A sleeping process in a mount namespace of its own, in place of a container's first process.
struct SleepingProcess(Child);

impl SleepingProcess {
    /// Starts a process and waits until it has run a script, which makes its mounts.
    fn after(shell: &Path, script: &str) -> Self {
        let mut command = Command::new(shell);
        let script = format!("set -e\n{script}\nexec /busybox sleep 100");
        let arguments = ["unshare", "-m", "/busybox", "sh", "-c", &script];
        let process = Self(command.args(arguments).spawn().expect("busybox"));
        let cmdline = format!("/proc/{}/cmdline", process.0.id());
        let is_asleep = || fs::read(&cmdline).is_ok_and(|line| line.ends_with(b"sleep\x00100\0"));
        let asleep = Deadline::after(Duration::from_secs(60))
            .poll(|| Ok::<_, ()>(is_asleep().then_some(())));
        assert_eq!(asleep, Ok(Some(())), "{script}");
        process
    }

    fn sandbox(&self, rootfs: &Path) -> Result<Sandbox, SandboxError> {
        Sandbox::open_during_create("sandbox-1", self.0.id().cast_signed(), rootfs)
    }

    /// Reads a file in the process's root.
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/root{path}", self.0.id())).ok()
    }
}

impl Drop for SleepingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a tmpfs the root of this process and its children, with a shell, `/rootfs` and a `/.crust` of its own.
fn set_up_host_root() -> Vec<TestMount> {
    // setns(2) requires that the thread doesn't share its root with other threads.
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
fn before_the_pivot_the_directory_is_below_the_rootfs() {
    let test = "before_the_pivot_the_directory_is_below_the_rootfs";
    in_mount_namespace(test, || {
        let mounts = set_up_host_root();
        let (mount, mkdir) = (busybox("mount"), busybox("mkdir"));
        let (rootfs, shell) = (Path::new("/rootfs"), Path::new("/busybox"));
        let none = SleepingProcess::after(shell, "");
        let directory = SleepingProcess::after(shell, &format!("{mkdir} -p /rootfs/.crust"));
        for process in [none, directory] {
            let error = process.sandbox(rootfs).expect_err("there is no tmpfs");
            assert!(matches!(error, SandboxError::NoTmpfs { .. }), "{error}");
        }
        let script = format!("{mount} -t tmpfs crust /rootfs/.crust");
        let sandbox = SleepingProcess::after(shell, &script);
        sandbox.sandbox(rootfs).expect("a sandbox");
        assert_eq!(
            sandbox.read("/rootfs/.crust/id").as_deref(),
            Some("sandbox-1")
        );
        assert_eq!(fs::read_dir("/.crust").expect("the host's").count(), 0);
        // The mounts end with the namespace.
        std::mem::forget(mounts);
    });
}

#[test]
fn after_the_pivot_the_directory_is_at_the_root() {
    let test = "after_the_pivot_the_directory_is_at_the_root";
    in_mount_namespace(test, || {
        let mounts = set_up_host_root();
        let [mount, mkdir, cp, pivot, touch, ln] =
            ["mount", "mkdir", "cp", "pivot_root", "touch", "ln"].map(busybox);
        let (rootfs, shell) = (Path::new("/rootfs"), Path::new("/busybox"));
        for setup in [
            format!("{mkdir} .crust"),
            format!("{mkdir} .crust; {touch} rootfs"),
            format!("{mkdir} .crust; {ln} -s .crust rootfs"),
            format!("{mkdir} -p .crust rootfs/.crust"),
        ] {
            let script = format!(
                "{mount} -t tmpfs rootfs /rootfs; {cp} /busybox /rootfs; cd /rootfs; {setup}; {mkdir} old proc; \
                 {mount} -t tmpfs crust .crust; {pivot} . old"
            );
            let sandbox = SleepingProcess::after(shell, &script);
            // The kernel rejects the second path with ENAMETOOLONG.
            for rootfs in [rootfs, Path::new(&format!("/{}", "x".repeat(300)))] {
                let opened = sandbox.sandbox(rootfs);
                opened.unwrap_or_else(|error| panic!("{setup}: {error}"));
                assert_eq!(
                    sandbox.read("/.crust/id").as_deref(),
                    Some("sandbox-1"),
                    "{setup}"
                );
            }
        }
        let script = format!(
            "{mount} -t tmpfs rootfs /rootfs; {cp} /busybox /rootfs; cd /rootfs; {mkdir} -p old .crust; {pivot} . old"
        );
        let error = SleepingProcess::after(shell, &script)
            .sandbox(rootfs)
            .expect_err("no tmpfs");
        assert!(matches!(error, SandboxError::NoTmpfs { .. }), "{error}");
        assert_eq!(fs::read_dir("/.crust").expect("the host's").count(), 0);
        std::mem::forget(mounts);
    });
}

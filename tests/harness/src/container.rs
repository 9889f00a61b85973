//! A container that is driven through a runtime's command line, as containerd's shim does it.

mod log;
mod observe;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use serde_json::Value;

pub use self::log::{LogLine, parse_log};
use crate::bundle::PodIdentity;
use crate::cleanup::{Cleanup, OperationGuard};
use crate::node::WAIT_TIMEOUT;
use crate::run::describe;
use crate::{Bundle, Run, Runtime, cgroup, host, process, wait_until};

/// A container of a written bundle. On drop it is killed and deleted through the bare delegate, and all processes in
/// its cgroup are killed, whatever the runtime under test did with it.
#[derive(Debug)]
pub struct Container {
    runtime: Runtime,
    id: String,
    bundle: PathBuf,
    root: PathBuf,
    cgroup: String,
    pod: Option<PodIdentity>,
    _cleanup: Cleanup,
}

impl Container {
    /// Makes a guard for the bundle's container without running anything.
    pub fn new(runtime: &Runtime, bundle: &Bundle) -> Self {
        let (id, root) = (bundle.id().to_owned(), bundle.runtime_root());
        let cgroup = bundle.cgroup().to_owned();
        let (delegate, owned) = (
            Runtime::bare(runtime.delegate()),
            (root.clone(), id.clone(), cgroup.clone()),
        );
        Self {
            runtime: runtime.clone(),
            bundle: bundle.path().to_owned(),
            pod: bundle.pod().cloned(),
            _cleanup: Cleanup::register(move || remove(&delegate, &owned.0, &owned.1, &owned.2)),
            id,
            root,
            cgroup,
        }
    }

    /// Creates and starts the bundle's container.
    #[track_caller]
    pub fn running(runtime: &Runtime, bundle: &Bundle) -> Self {
        let container = Self::new(runtime, bundle);
        let created = container.create();
        let log = || container.last_log_error().unwrap_or_default();
        assert!(
            created.status.success(),
            "should have worked: {created}\n{}",
            log()
        );
        let _ = container.start().success();
        container
    }

    /// Creates the container, which must fail, and returns the last error in its log.
    #[track_caller]
    pub fn expect_refusal(&self) -> String {
        let run = self.create().failure();
        let error = self.last_log_error();
        error.unwrap_or_else(|| panic!("no error in the log: {run}"))
    }

    /// Returns a command of the runtime with the working directory and the global flags of containerd.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.runtime.command();
        command
            .arg("--root")
            .arg(&self.root)
            .arg("--log")
            .arg(self.log_path());
        command
            .args(["--log-format", "json"])
            .args(arguments)
            .current_dir(&self.bundle);
        command
    }

    /// Returns the command that creates the container, without its standard streams.
    pub fn create_command(&self) -> Command {
        let mut command = self.command(&["create", "--bundle"]);
        command
            .arg(&self.bundle)
            .arg("--pid-file")
            .arg(self.pid_file())
            .arg(&self.id);
        command
    }

    /// Creates the container with the standard streams that containerd gives it. All three of a sandbox are a read-only
    /// `/dev/null`. Of an app, the input is empty and the output goes to the files `stdout` and `stderr` in the bundle.
    pub fn create(&self) -> Run {
        self.create_with(self.create_command())
    }

    /// Creates the container with another command, such as [`Self::create_command`] under strace.
    pub fn create_with(&self, mut command: Command) -> Run {
        self.set_streams(&mut command);
        let line = describe(&command);
        let _operation = OperationGuard::begin();
        let status = command
            .status()
            .unwrap_or_else(|error| panic!("{line}: {error}"));
        Run {
            command: line,
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// Starts a command that creates the container, and does not wait for it.
    #[track_caller]
    pub fn spawn(&self, mut command: Command) -> Child {
        self.set_streams(&mut command);
        let spawned = command.spawn();
        spawned.unwrap_or_else(|error| panic!("{}: {error}", describe(&command)))
    }

    /// Sets the standard streams that containerd sets.
    fn set_streams(&self, command: &mut Command) {
        let null = || Stdio::from(File::open("/dev/null").expect("/dev/null"));
        let output = |name: &str| {
            let file = File::options()
                .create(true)
                .append(true)
                .open(self.bundle.join(name));
            Stdio::from(file.unwrap_or_else(|error| panic!("{name} in the bundle: {error}")))
        };
        command.stdin(null());
        if self.is_sandbox() {
            command.stdout(null()).stderr(null());
        } else {
            command.stdout(output("stdout")).stderr(output("stderr"));
        }
    }

    /// Starts the created container and waits until its own program runs or has ended. A delegate's `start` returns a
    /// little earlier, and then crun's `exec` can't enter a user namespace yet.
    pub fn start(&self) -> Run {
        let pid = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let program = || fs::read(format!("/proc/{}/cmdline", pid.trim())).ok();
        let before = program();
        let started = Run::capture(&mut self.command(&["start", &self.id]));
        if started.status.success() {
            wait_until("a container's program to run", WAIT_TIMEOUT, || {
                before.is_none() || program() != before
            });
        }
        started
    }

    /// Runs a program in the container.
    pub fn exec(&self, arguments: &[&str]) -> Run {
        Run::capture(self.command(&["exec", &self.id]).args(arguments))
    }

    /// Runs a shell script in the container, which must succeed, and returns its trimmed output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.exec(&["/bin/sh", "-ec", script])
            .success()
            .stdout
            .trim()
            .to_owned()
    }

    /// Sends a signal to the container's first process.
    pub fn kill(&self, signal: &str) -> Run {
        Run::capture(&mut self.command(&["kill", &self.id, signal]))
    }

    /// Kills the container and waits until the runtime reports it as stopped.
    pub fn stop(&self) {
        let _ = self.kill("KILL");
        wait_until(
            &format!("{} to stop", self.id),
            Duration::from_secs(60),
            || self.status().is_none_or(|status| status == "stopped"),
        );
    }

    pub fn delete(&self) -> Run {
        Run::capture(&mut self.command(&["delete", &self.id]))
    }

    /// Deletes the container with `--force`, as containerd's shim does even after a successful delete.
    pub fn delete_force(&self) -> Run {
        Run::capture(&mut self.command(&["delete", "--force", &self.id]))
    }

    /// Cleans up after the delegate was killed, as containerd's shim does. Also kills all processes in the cgroup, as
    /// kubelet does, because the delegate may no longer know them.
    ///
    /// runc leaves a bind mount of its own program, `runc.XXXXXX` in the container's directory, and a temporary pid
    /// file. With either of them, another create with the same directories would fail. containerd is not affected,
    /// because it uses new directories.
    pub fn clean_up_after_kill(&self) {
        for mount in host::mounts_below(&self.root.join(&self.id)) {
            let name = mount.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b"runc.") {
                // Another process may have unmounted the bind mount.
                let _ = umount2(&mount, MntFlags::MNT_DETACH);
            }
        }
        let _ = self.delete_force();
        cgroup::kill_and_remove(&self.cgroup);
        let _ = fs::remove_file(self.bundle.join(".init.pid"));
    }

    /// Stops and deletes the container. Its bundle stays.
    #[track_caller]
    pub fn end(&self) {
        self.stop();
        let _ = self.delete().success();
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// Returns the `--root` of the runtimes.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the name of the container's cgroup.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    pub fn pod(&self) -> Option<&PodIdentity> {
        self.pod.as_ref()
    }

    fn pid_file(&self) -> PathBuf {
        self.bundle.join("init.pid")
    }

    fn is_sandbox(&self) -> bool {
        let config = fs::read(self.bundle.join("config.json")).unwrap_or_default();
        // Invalid JSON or a missing bundle is for the runtime to report.
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        config["annotations"]["io.kubernetes.cri.container-type"] == "sandbox"
    }
}

/// Stops and deletes containers with their bundles, as containerd does.
#[track_caller]
pub fn end(containers: impl IntoIterator<Item = Container>) {
    for container in containers {
        container.end();
        fs::remove_dir_all(container.bundle()).expect("remove a bundle");
    }
}

/// Kills all processes of containers at once, as the kernel's OOM killer may, and waits until they have ended. No hook
/// and no `delete` is run. The kernel releases their mounts later.
#[track_caller]
pub fn kill_everything(containers: &[&Container]) {
    let processes = containers.iter().flat_map(|container| {
        let mut pids = cgroup::processes(container.cgroup());
        pids.push(container.pid());
        pids
    });
    let processes: Vec<i32> = processes.collect();
    for pid in &processes {
        process::kill_now(*pid);
    }
    wait_until("the processes to end", WAIT_TIMEOUT, || {
        !processes.iter().any(|pid| process::is_alive(*pid))
    });
}

/// Kills containers as [`kill_everything`] does, and removes their bundles: the state after a reboot.
#[track_caller]
pub fn kill_and_remove_bundles(containers: &[&Container]) {
    kill_everything(containers);
    for container in containers {
        fs::remove_dir_all(container.bundle()).expect("remove a bundle");
    }
}

fn remove(delegate: &Runtime, root: &Path, id: &str, cgroup: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if root.join(id).exists() {
        let mut command = delegate.command();
        command
            .arg("--root")
            .arg(root)
            .args(["delete", "--force", id]);
        match command.stdin(Stdio::null()).output() {
            Err(error) => errors.push(format!("{}: {error}", describe(&command))),
            Ok(output) if root.join(id).exists() => errors.push(format!(
                "{}: {}",
                describe(&command),
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Ok(_) => {}
        }
    }
    // A runtime that was killed may have left processes without any state.
    errors.extend(cgroup::kill_and_remove(cgroup));
    errors
}

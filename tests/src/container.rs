//! A container, driven through a runtime's command line as containerd's shim drives it.

mod log;
mod observe;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use serde_json::Value;

pub use self::log::{LogLine, parse_log};
use crate::bundle::Pod;
use crate::cleanup::{Cleanup, Working};
use crate::node::WAIT_TIMEOUT;
use crate::run::describe;
use crate::{Bundle, Run, Runtime, cgroup, host, process, wait_until};

/// A container of a written bundle. Dropped, it is killed and deleted through the bare delegate,
/// and what is left in its cgroup is killed, whatever the runtime under test made of it.
#[derive(Debug)]
pub struct Container {
    runtime: Runtime,
    id: String,
    bundle: PathBuf,
    root: PathBuf,
    cgroup: String,
    pod: Option<Pod>,
    _cleanup: Cleanup,
}

impl Container {
    /// A guard for the bundle's container. Nothing is run yet.
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

    /// Creates the bundle's container and starts it.
    ///
    /// # Panics
    ///
    /// When either fails.
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
    ///
    /// # Panics
    ///
    /// When it is created, and when the log has no error.
    #[track_caller]
    pub fn expect_refusal(&self) -> String {
        let run = self.create().failure();
        let error = self.last_log_error();
        error.unwrap_or_else(|| panic!("no error in the log: {run}"))
    }

    /// The runtime's command with the global flags that containerd gives, and its directory.
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

    /// The command that creates it, without stdio.
    pub fn create_command(&self) -> Command {
        let mut command = self.command(&["create", "--bundle"]);
        command
            .arg(&self.bundle)
            .arg("--pid-file")
            .arg(self.pid_file())
            .arg(&self.id);
        command
    }

    /// Creates it. Its standard streams are containerd's: for a sandbox all three are
    /// `/dev/null`, read-only; else the input is empty and the output goes to the files `stdout`
    /// and `stderr` in the bundle.
    pub fn create(&self) -> Run {
        self.create_with(self.create_command())
    }

    /// Creates it with a command of the test's own, such as [`Self::create_command`] under strace.
    pub fn create_with(&self, mut command: Command) -> Run {
        self.give_streams(&mut command);
        let line = describe(&command);
        let _working = Working::begin();
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

    /// Begins to create it, with [`Self::create_command`] or that command made into another.
    ///
    /// # Panics
    ///
    /// When the command can't be started.
    #[track_caller]
    pub fn spawn(&self, mut command: Command) -> Child {
        self.give_streams(&mut command);
        let spawned = command.spawn();
        spawned.unwrap_or_else(|error| panic!("{}: {error}", describe(&command)))
    }

    /// Gives a command that creates it the streams that containerd would.
    fn give_streams(&self, command: &mut Command) {
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

    /// Starts what was created. Once that has worked its own program runs, or has ended: a delegate's `start`
    /// returns a little earlier, and then crun's `exec` can't enter a user namespace yet.
    pub fn start(&self) -> Run {
        let pid = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let program = || fs::read(format!("/proc/{}/cmdline", pid.trim())).ok();
        let delegates = program();
        let started = Run::of(&mut self.command(&["start", &self.id]));
        if started.status.success() {
            wait_until("a container's program to run", WAIT_TIMEOUT, || {
                delegates.is_none() || program() != delegates
            });
        }
        started
    }

    /// Runs a program in the container, as its own process would run.
    pub fn exec(&self, arguments: &[&str]) -> Run {
        Run::of(self.command(&["exec", &self.id]).args(arguments))
    }

    /// The trimmed output of a shell script in the container.
    ///
    /// # Panics
    ///
    /// When it doesn't end with 0.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.exec(&["/bin/sh", "-ec", script])
            .success()
            .stdout
            .trim()
            .to_owned()
    }

    /// Sends a signal to its first process.
    pub fn kill(&self, signal: &str) -> Run {
        Run::of(&mut self.command(&["kill", &self.id, signal]))
    }

    /// Kills it and waits until the runtime calls it stopped.
    pub fn stop(&self) {
        let _ = self.kill("KILL");
        wait_until(
            &format!("{} to stop", self.id),
            Duration::from_secs(60),
            || self.status().is_none_or(|status| status == "stopped"),
        );
    }

    /// Deletes it.
    pub fn delete(&self) -> Run {
        Run::of(&mut self.command(&["delete", &self.id]))
    }

    /// Deletes it with `--force`, as containerd's shim does, even after a delete.
    pub fn delete_force(&self) -> Run {
        Run::of(&mut self.command(&["delete", "--force", &self.id]))
    }

    /// Puts away what there is of it after its delegate was killed: as containerd's shim does; and what the
    /// delegate doesn't know of any more kubelet ends with the pod's group. runc leaves two things that no
    /// create goes on after in the same place, and containerd makes that anew: the bind of its own program
    /// that it starts from, `runc.XXXXXX` in the container's directory, and half of a pid file.
    pub fn clean_up_after_kill(&self) {
        for mount in host::mounts_below(&self.root.join(&self.id)) {
            let name = mount.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(b"runc.") {
                // Another try may have put it away.
                let _ = umount2(&mount, MntFlags::MNT_DETACH);
            }
        }
        let _ = self.delete_force();
        cgroup::kill_and_remove(&self.cgroup);
        let _ = fs::remove_file(self.bundle.join(".init.pid"));
    }

    /// Stops and deletes it. Its bundle stays.
    ///
    /// # Panics
    ///
    /// When it can't be deleted.
    #[track_caller]
    pub fn end(&self) {
        self.stop();
        let _ = self.delete().success();
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Its bundle's directory.
    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// The runtimes' `--root`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The name of its cgroup.
    pub fn cgroup(&self) -> &str {
        &self.cgroup
    }

    /// Its pod.
    pub fn pod(&self) -> Option<&Pod> {
        self.pod.as_ref()
    }

    fn pid_file(&self) -> PathBuf {
        self.bundle.join("init.pid")
    }

    fn is_sandbox(&self) -> bool {
        let config = fs::read(self.bundle.join("config.json")).unwrap_or_default();
        // Not JSON or no bundle is the runtime's to complain about.
        let config: Value = serde_json::from_slice(&config).unwrap_or_default();
        config["annotations"]["io.kubernetes.cri.container-type"] == "sandbox"
    }
}

/// Ends containers as containerd does: the bundle goes with them.
///
/// # Panics
///
/// When one can't be deleted.
#[track_caller]
pub fn end(containers: impl IntoIterator<Item = Container>) {
    for container in containers {
        container.end();
        fs::remove_dir_all(container.bundle()).expect("the bundle goes");
    }
}

/// Kills all processes of containers at once, as a machine's out-of-memory killer might, and waits until
/// they have ended: nobody runs a hook or a `delete`. The kernel lets go of their mounts after that.
///
/// # Panics
///
/// When one doesn't end.
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

/// The same, and removes their bundles, as a node that boots does.
///
/// # Panics
///
/// When one doesn't end.
#[track_caller]
pub fn kill_and_remove_bundles(containers: &[&Container]) {
    kill_everything(containers);
    for container in containers {
        fs::remove_dir_all(container.bundle()).expect("its bundle");
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
    // A runtime that was killed has left no state, but processes.
    errors.extend(cgroup::kill_and_remove(cgroup));
    errors
}

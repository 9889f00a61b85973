//! A container, driven only by the OCI command line: in a VM it has no processes on the host, and a runtime's log and
//! files are its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use runcrust_tests::bundle::PodIdentity;
use runcrust_tests::cleanup::Cleanup;
use runcrust_tests::{Bundle, Run, cgroup, holds_within};
use serde_json::Value;

use crate::suite::Suite;

/// The container of a written bundle. Deleted by force when dropped.
#[derive(Debug)]
pub(crate) struct Container {
    oci: Oci,
    id: String,
    bundle: PathBuf,
    pod: Option<PodIdentity>,
    _cleanup: Cleanup,
}

/// The runtime's command line.
#[derive(Debug, Clone)]
struct Oci {
    suite: Suite,
    root: PathBuf,
}

impl Container {
    /// Returns the container without creating it.
    pub(crate) fn new(suite: &Suite, bundle: &Bundle) -> Self {
        let oci = Oci {
            suite: suite.clone(),
            root: bundle.runtime_root(),
        };
        let (id, cgroup) = (bundle.id().to_owned(), bundle.cgroup().to_owned());
        let owned = (oci.clone(), id.clone());
        let cleanup = Cleanup::register(move || {
            let (oci, id) = &owned;
            // The container may never have been created, or the runtime may be unable to delete it.
            let _ = oci.run(&["delete", "--force", id]);
            cgroup::kill_and_remove(&cgroup)
        });
        Self {
            bundle: bundle.path().to_owned(),
            pod: bundle.pod().cloned(),
            oci,
            id,
            _cleanup: cleanup,
        }
    }

    /// Creates and starts the container.
    #[track_caller]
    pub(crate) fn run(&self) {
        assert_success(&self.create());
        assert_success(&self.start());
    }

    #[track_caller]
    pub(crate) fn create(&self) -> Run {
        let (bundle, pid_file) = (self.bundle.as_os_str(), self.pid_file());
        let mut command = self.oci.command(&["create", "--bundle"]);
        command
            .arg(bundle)
            .arg("--pid-file")
            .arg(pid_file)
            .arg(&self.id);
        self.oci.run_with_timeout(&mut command)
    }

    #[track_caller]
    pub(crate) fn start(&self) -> Run {
        self.call(&["start", &self.id])
    }

    #[track_caller]
    pub(crate) fn exec(&self, arguments: &[&str]) -> Run {
        self.call(&[&["exec", &*self.id], arguments].concat())
    }

    /// Runs a shell script in the container, asserts success, and returns the trimmed standard output.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let run = self.exec(&["/bin/sh", "-ec", script]);
        assert_success(&run);
        run.stdout.trim().to_owned()
    }

    /// Returns the output of `state`, or `None` if the runtime does not know the container.
    #[track_caller]
    pub(crate) fn state(&self) -> Option<Value> {
        let run = self.call(&["state", &self.id]);
        run.status.success().then(|| {
            serde_json::from_str(&run.stdout)
                .unwrap_or_else(|error| panic!("state is not JSON ({error}): {run}"))
        })
    }

    pub(crate) fn status(&self) -> Option<String> {
        Some(self.state()?["status"].as_str()?.to_owned())
    }

    /// Returns the pid in the pid file: the process that represents the container on the host.
    #[track_caller]
    pub(crate) fn pid(&self) -> i32 {
        let file = self.pid_file();
        let text = fs::read_to_string(&file).unwrap_or_default();
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("no pid in {}: {text:?}", file.display()))
    }

    #[track_caller]
    pub(crate) fn kill(&self, signal: &str) -> Run {
        self.call(&["kill", &self.id, signal])
    }

    #[track_caller]
    pub(crate) fn delete(&self) -> Run {
        self.call(&["delete", &self.id])
    }

    /// Kills the container, waits until it has stopped, and deletes it and its bundle, as containerd does.
    #[track_caller]
    pub(crate) fn end(&self) {
        assert_success(&self.kill("KILL"));
        self.wait_for(&["stopped"]);
        assert_success(&self.delete());
        fs::remove_dir_all(&self.bundle).expect("rm -r of a bundle");
    }

    /// Waits until the container has one of these statuses.
    #[track_caller]
    pub(crate) fn wait_for(&self, expected: &[&str]) {
        let timeout = self.oci.suite.timeout;
        let mut status = None;
        let came = holds_within(timeout, || {
            status = self.status();
            status
                .as_deref()
                .is_some_and(|status| expected.contains(&status))
        });
        assert!(came, "{} is {status:?}, not {expected:?}", self.id);
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn pod(&self) -> Option<&PodIdentity> {
        self.pod.as_ref()
    }

    pub(crate) fn pid_file(&self) -> PathBuf {
        self.bundle.join("init.pid")
    }

    /// Runs a command of the runtime.
    #[track_caller]
    pub(crate) fn call(&self, arguments: &[&str]) -> Run {
        self.oci.run_with_timeout(&mut self.oci.command(arguments))
    }
}

impl Oci {
    /// Returns a command with the small environment that containerd sets.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.suite.runtime);
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .arg("--root")
            .arg(&self.root)
            .args(&self.suite.flags)
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Option<Run> {
        Run::capture_within(&mut self.command(arguments), self.suite.timeout)
    }

    #[track_caller]
    fn run_with_timeout(&self, command: &mut Command) -> Run {
        let timeout = self.suite.timeout;
        Run::capture_within(command, timeout)
            .unwrap_or_else(|| panic!("{command:?} has not ended within {timeout:?}"))
    }
}

#[track_caller]
pub(crate) fn assert_success(run: &Run) {
    assert!(run.status.success(), "{run}");
}

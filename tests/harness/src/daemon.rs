//! The processes of daemons.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::cleanup::OperationGuard;
use crate::wait_until;

/// A daemon's process, which a guard and its cleanup share.
#[derive(Debug, Clone)]
pub struct Daemon {
    log: PathBuf,
    child: Arc<Mutex<Option<Child>>>,
}

impl Daemon {
    /// Makes a daemon that is not started yet, with a file for its standard error.
    pub fn logging_to(log: &Path) -> Self {
        Self {
            log: log.to_owned(),
            child: Arc::default(),
        }
    }

    pub fn spawn(&self, mut command: Command) {
        let _operation = OperationGuard::begin();
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.unwrap_or_else(|error| panic!("{}: {error}", self.log.display()));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // A Ctrl-C in the terminal is for the test, which then stops the daemon in order.
        command.process_group(0);
        let spawned = command.spawn();
        *self.child() = Some(spawned.unwrap_or_else(|error| panic!("{command:?}: {error}")));
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    pub fn pid(&self) -> i32 {
        let child = self.child();
        let child = child.as_ref().expect("the daemon was started");
        child.id().cast_signed()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("the daemon is running");
    }

    /// Suspends the daemon with SIGSTOP. `kill(2)` returns before the daemon's threads have stopped, so this waits
    /// until the kernel reports that all of them have.
    pub fn suspend(&self) {
        self.signal(Signal::SIGSTOP);
        let pid = Pid::from_raw(self.pid());
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("a child");
        assert_eq!(status, WaitStatus::Stopped(pid, Signal::SIGSTOP));
    }

    /// Stops the daemon with SIGTERM and returns its exit status. `what` names it in the message of a timeout.
    #[track_caller]
    pub fn stop(&self, what: &str, limit: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let mut ended = None;
        wait_until(&format!("{what} to end"), limit, || {
            ended = self.ended();
            ended.is_some()
        });
        ended.expect("the daemon has ended")
    }

    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn is_running(&self) -> bool {
        self.child()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn ended(&self) -> Option<ExitStatus> {
        self.child().as_mut()?.try_wait().ok()?
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

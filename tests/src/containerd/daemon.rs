//! The daemon's process.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cleanup::Working;

/// The daemon's process, shared by the guard and its cleanup.
#[derive(Debug, Clone)]
pub(super) struct Daemon {
    base: PathBuf,
    child: Arc<Mutex<Option<Child>>>,
}

impl Daemon {
    pub(super) fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            child: Arc::default(),
        }
    }

    pub(super) fn spawn(&self) {
        let _working = Working::begin();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.base.join("containerd.log"));
        let log = log.expect("containerd.log");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(self.base.join("config.toml"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        // A terminal's Ctrl-C is for the test, which then stops it in good order.
        command.process_group(0);
        *self.child() = Some(
            command
                .spawn()
                .expect("containerd (of the package containerd)"),
        );
    }

    pub(super) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.child()
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn ended(&self) -> Option<ExitStatus> {
        self.child().as_mut()?.try_wait().ok()?
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A command that keeps running while the test continues.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use runcrust_tests::wait_until;

use super::COMMAND_TIMEOUT;
use crate::scene::Scene;

/// A running command. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct BackgroundCommand {
    child: Child,
    output: PathBuf,
}

impl BackgroundCommand {
    pub(super) fn start(scene: &Scene, arguments: &[&str]) -> Self {
        let output = scene.node.dir().join("background");
        let [stdout, stderr] = [0, 1].map(|_| {
            Stdio::from(
                File::options()
                    .append(true)
                    .create(true)
                    .open(&output)
                    .unwrap(),
            )
        });
        let mut command = scene.crustlet.client(arguments);
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn();
        Self {
            child: child.expect("a client"),
            output,
        }
    }

    /// Returns everything that the command has written so far, to either stream.
    pub(super) fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until the command has written `part`.
    #[track_caller]
    pub(super) fn wait_for(&self, part: &str) {
        wait_until(
            &format!("a command to write {part:?}"),
            COMMAND_TIMEOUT,
            || self.text().contains(part),
        );
    }

    /// Waits until the command ends by itself.
    #[track_caller]
    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("a command to end", COMMAND_TIMEOUT, || {
            ended = self.child.try_wait().expect("waitpid");
            ended.is_some()
        });
        ended.expect("an exit status")
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("waitpid").is_none()
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

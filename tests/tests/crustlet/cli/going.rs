//! A command that goes on.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use runcrust_tests::wait_until;

use super::PATIENCE;
use crate::scene::Scene;

/// It is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Going {
    child: Child,
    output: PathBuf,
}

impl Going {
    pub(super) fn start(scene: &Scene, arguments: &[&str]) -> Self {
        let output = scene.node.dir().join("going");
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

    /// All that it has written so far.
    pub(super) fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap()
    }

    /// Waits until it has written this.
    #[track_caller]
    pub(super) fn wait_for(&self, part: &str) {
        wait_until(&format!("a command to write {part:?}"), PATIENCE, || {
            self.text().contains(part)
        });
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub(super) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("a command to end", PATIENCE, || {
            ended = self.child.try_wait().expect("waitpid");
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("waitpid").is_none()
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! The runtime programs that tests call: a bare delegate, or runcrust in front of one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Delegate;

/// A runtime and its delegate.
#[derive(Debug, Clone)]
pub struct Runtime {
    program: PathBuf,
    delegate: Delegate,
}

impl Runtime {
    /// The delegate without runcrust.
    pub fn bare(delegate: Delegate) -> Self {
        Self {
            program: delegate.program(),
            delegate,
        }
    }

    /// A program that behaves as `delegate` does.
    pub fn at(program: impl Into<PathBuf>, delegate: Delegate) -> Self {
        Self {
            program: program.into(),
            delegate,
        }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the delegate, which also cleans up after tests.
    pub fn delegate(&self) -> Delegate {
        self.delegate
    }

    /// Returns a command without arguments, with the small environment that containerd sets.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command
    }
}

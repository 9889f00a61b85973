//! A runtime program that tests call: a bare delegate, or runcrust before one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Delegate;

/// A runtime and the delegate that does its work.
#[derive(Debug, Clone)]
pub struct Runtime {
    program: PathBuf,
    delegate: Delegate,
}

impl Runtime {
    /// The delegate itself.
    pub fn bare(delegate: Delegate) -> Self {
        Self {
            program: delegate.program(),
            delegate,
        }
    }

    /// Any program that behaves as `delegate` does.
    pub fn at(program: impl Into<PathBuf>, delegate: Delegate) -> Self {
        Self {
            program: program.into(),
            delegate,
        }
    }

    /// Its program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The delegate that does its work, and cleans up after it.
    pub fn delegate(&self) -> Delegate {
        self.delegate
    }

    /// A command of it, without arguments, and with the little environment that containerd gives.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command
    }
}

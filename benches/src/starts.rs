//! The time of a program from its start to its end.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Run, TestDir};

use crate::programs::{PEAK, STARTER};
use crate::statistics::{UNDISTURBED, quantile};

/// A command line without environment and working directory.
#[derive(Debug, Clone)]
pub(crate) struct CommandLine(Vec<OsString>);

impl CommandLine {
    pub(crate) fn new<T: AsRef<OsStr>>(
        program: &Path,
        arguments: impl IntoIterator<Item = T>,
    ) -> Self {
        let arguments = arguments.into_iter().map(|it| it.as_ref().to_owned());
        Self(
            std::iter::once(program.as_os_str().to_owned())
                .chain(arguments)
                .collect(),
        )
    }

    /// Returns the program and its arguments.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.0
    }
}

/// The number of starts in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// The number of blocks for each command. Commands take turns: A B C C B A.
    pub(crate) blocks: usize,
    /// The number of starts of a command in a block, one after the other.
    pub(crate) starts: usize,
}

/// The C programs that start other programs.
#[derive(Debug)]
pub(crate) struct Starter {
    starter: PathBuf,
    peak: PathBuf,
}

impl Starter {
    pub(crate) fn new(dir: &TestDir) -> Self {
        Self {
            starter: STARTER.build(dir),
            peak: PEAK.build(dir),
        }
    }

    /// Measures commands, and returns for each one time in milliseconds for each round.
    pub(crate) fn rounds<const N: usize>(
        &self,
        rounds: usize,
        round: Round,
        commands: [&CommandLine; N],
    ) -> [Vec<f64>; N] {
        self.rounds_with(rounds, round, commands, || ())
    }

    /// Measures commands as [`Self::rounds`] does, and calls `clean_up` after each block.
    pub(crate) fn rounds_with<const N: usize>(
        &self,
        rounds: usize,
        round: Round,
        commands: [&CommandLine; N],
        clean_up: impl Fn(),
    ) -> [Vec<f64>; N] {
        let mut all = [const { Vec::new() }; N];
        for _ in 0..rounds {
            let mut times = [const { Vec::new() }; N];
            for block in 0..round.blocks {
                for turn in 0..N {
                    // Each command is first equally often: A B, B A.
                    let turn = if block % 2 == 0 { turn } else { N - 1 - turn };
                    times[turn].extend(self.starts(commands[turn], round.starts));
                    clean_up();
                }
            }
            for (all, times) in all.iter_mut().zip(times) {
                all.push(quantile(&times, UNDISTURBED));
            }
        }
        all
    }

    /// Runs a command once without measuring it.
    pub(crate) fn run_once(&self, command: &CommandLine) {
        let _ = self.starts(command, 1);
    }

    /// Starts a command `count` times and returns the times in milliseconds.
    fn starts(&self, command: &CommandLine, count: usize) -> Vec<f64> {
        let run = Run::capture(
            with_clean_environment(&self.starter)
                .arg(count.to_string())
                .args(&command.0),
        );
        let run = run.success();
        let nanoseconds = run.stdout.lines().map(str::parse::<f64>);
        let times = nanoseconds.map(|it| it.expect("nanoseconds") / 1e6);
        times.collect()
    }

    /// Returns the peak resident set, in MB, of a program before its exec.
    pub(crate) fn peak(&self, command: &CommandLine) -> f64 {
        let run = Run::capture(with_clean_environment(&self.peak).args(&command.0)).success();
        let kibibytes: f64 = run.stdout.trim().parse().expect("VmHWM");
        kibibytes * 1024.0 / 1e6
    }
}

/// Returns a command with the small environment that containerd sets.
fn with_clean_environment(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    command
}

//! How long a program takes from its start to its end.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use runcrust_tests::{Run, TestDir};

use crate::programs::{PEAK, STARTER};
use crate::statistics::{UNDISTURBED, quantile};

/// A command line, without what is around it.
#[derive(Debug, Clone)]
pub(crate) struct Line(Vec<OsString>);

impl Line {
    /// Of a program and its arguments.
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

    /// Its words, the program first.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.0
    }
}

/// How much is started in a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Of each command, taken in turns: A B C C B A.
    pub(crate) blocks: usize,
    /// Of the command, one after the other.
    pub(crate) starts: usize,
}

/// The programs that start others.
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

    /// Of each command, a time in milliseconds for each round.
    pub(crate) fn rounds<const N: usize>(
        &self,
        rounds: usize,
        round: Round,
        commands: [&Line; N],
    ) -> [Vec<f64>; N] {
        self.rounds_with(rounds, round, commands, || ())
    }

    /// The same of commands that leave something to be put away after each block.
    pub(crate) fn rounds_with<const N: usize>(
        &self,
        rounds: usize,
        round: Round,
        commands: [&Line; N],
        put_away: impl Fn(),
    ) -> [Vec<f64>; N] {
        let mut all = [const { Vec::new() }; N];
        for _ in 0..rounds {
            let mut times = [const { Vec::new() }; N];
            for block in 0..round.blocks {
                for turn in 0..N {
                    // Each is as often the first one: A B, B A.
                    let turn = if block % 2 == 0 { turn } else { N - 1 - turn };
                    times[turn].extend(self.starts(commands[turn], round.starts));
                    put_away();
                }
            }
            for (all, times) in all.iter_mut().zip(times) {
                all.push(quantile(&times, UNDISTURBED));
            }
        }
        all
    }

    /// Has a command done, untimed.
    pub(crate) fn once(&self, command: &Line) {
        let _ = self.starts(command, 1);
    }

    /// Starts a command so many times; each time in milliseconds.
    fn starts(&self, command: &Line, count: usize) -> Vec<f64> {
        let run = Run::of(
            surroundings(&self.starter)
                .arg(count.to_string())
                .args(&command.0),
        );
        let run = run.success();
        let nanoseconds = run.stdout.lines().map(str::parse::<f64>);
        let times = nanoseconds.map(|it| it.expect("nanoseconds") / 1e6);
        times.collect()
    }

    /// The peak resident set, in MB, of a program when it becomes another.
    pub(crate) fn peak(&self, command: &Line) -> f64 {
        let run = Run::of(surroundings(&self.peak).args(&command.0)).success();
        let kibibytes: f64 = run.stdout.trim().parse().expect("VmHWM");
        kibibytes * 1024.0 / 1e6
    }
}

/// The little environment that containerd gives.
fn surroundings(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );
    command
}

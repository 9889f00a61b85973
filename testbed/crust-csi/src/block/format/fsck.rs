//! Runs fsck(8) like kubelet's mounters.

use std::ffi::OsStr;
use std::time::Duration;

use crust_blockfs::probe;

use super::error::FormatError;
use super::run::{self, ImageLock, ProgramOutput, RunError};
use super::{FormatRequest, contents};

/// A full check of a large file system takes long. Meanwhile kubelet repeats its call, which fails with `ABORTED`.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The bit of fsck's exit code for "errors corrected" (fsck(8)).
const CORRECTED: i32 = 1;
/// The bit for "errors left uncorrected".
const UNCORRECTED: i32 = 4;

/// An existing file system that has to be checked.
#[derive(Debug)]
pub(crate) struct Fsck<'a>(FormatRequest<'a>);

impl<'a> Fsck<'a> {
    pub(super) fn new(request: FormatRequest<'a>) -> Self {
        Self(request)
    }

    /// Corrects errors that need no confirmation. If fsck can't check the file system, the mount is tried nevertheless.
    pub(crate) fn run(self) -> Result<(), FormatError> {
        let device = self.0.device.path();
        let checked = self.run_program("fsck", &[OsStr::new("-a"), device.as_os_str()])?;
        let Some(mut ran) = checked else {
            tracing::warn!("{}: fsck is not installed: not checked", device.display());
            return Ok(());
        };
        if FsckResult::from_output(&ran) == FsckResult::Unknown
            && let Some(again) = self.check_with_backup_superblock()?
        {
            ran = again;
        }
        match FsckResult::from_output(&ran) {
            FsckResult::Sound => Ok(()),
            FsckResult::Corrected => {
                tracing::warn!("{}: corrected by fsck: {}", device.display(), ran.summary());
                Ok(())
            }
            FsckResult::Unknown => {
                let (status, output) = (ran.status, ran.summary());
                tracing::warn!(
                    "{}: not checked by fsck: {status}: {output}",
                    device.display()
                );
                Ok(())
            }
            FsckResult::Uncorrected => Err(FormatError::Uncorrected {
                device: device.to_owned(),
                output: ran.summary(),
            }),
            FsckResult::Killed => Err(FormatError::ProgramFailed {
                program: "fsck",
                path: device.to_owned(),
                status: ran.status,
                output: ran.summary(),
            }),
        }
    }

    /// Runs a program with the lock of the image. `None` if the program isn't installed.
    fn run_program(
        &self,
        program: &'static str,
        arguments: &[&OsStr],
    ) -> Result<Option<ProgramOutput>, FormatError> {
        let lock = ImageLock::acquire(self.0.image)?;
        match run::run(program, arguments, Some(lock), TIMEOUT) {
            Ok(ran) => Ok(Some(ran)),
            Err(RunError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Checks an ext file system with its first backup superblock. e2fsck(8) writes the superblock in two parts, the
    /// checksum last. If it is killed in between, neither the kernel nor e2fsck accepts the superblock, but the first
    /// backup is intact.
    fn check_with_backup_superblock(&self) -> Result<Option<ProgramOutput>, FormatError> {
        let Some(check) = self.0.fstype.format().check_by_backup else {
            return Ok(None);
        };
        let found = contents::open(self.0.device).ok();
        let found = found.and_then(|device| probe::probe(device).ok().flatten());
        let Some(found) = found else {
            return Ok(None);
        };
        let (program, arguments) = check(found.block);
        let mut arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        arguments.push(self.0.device.path().as_os_str());
        self.run_program(program, &arguments)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum FsckResult {
    Sound,
    Corrected,
    Uncorrected,
    /// fsck has not checked everything.
    Unknown,
    /// fsck was killed by a signal.
    Killed,
}

impl FsckResult {
    fn from_output(ran: &ProgramOutput) -> Self {
        match ran.status.code() {
            None => Self::Killed,
            Some(0) => Self::Sound,
            Some(code) if code & UNCORRECTED != 0 => Self::Uncorrected,
            // The bit for "reboot required" is ignored: it is about root file systems.
            Some(code) if code & !3 == 0 && code & CORRECTED != 0 => Self::Corrected,
            Some(_) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn the_exit_status_of_fsck_is_interpreted() {
        for (status, expected) in [
            (0, FsckResult::Sound),
            (1 << 8, FsckResult::Corrected),
            (3 << 8, FsckResult::Corrected),
            (4 << 8, FsckResult::Uncorrected),
            (5 << 8, FsckResult::Uncorrected),
            (12 << 8, FsckResult::Uncorrected),
            (8 << 8, FsckResult::Unknown),
            (9 << 8, FsckResult::Unknown),
            (16 << 8, FsckResult::Unknown),
            (9, FsckResult::Killed),
        ] {
            let ran = ProgramOutput {
                status: ExitStatus::from_raw(status),
                stdout: Vec::new(),
                stderr: Vec::new(),
            };
            assert_eq!(FsckResult::from_output(&ran), expected, "{:?}", ran.status);
        }
    }
}

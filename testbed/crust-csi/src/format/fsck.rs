//! fsck(8), as kubelet's mounters run it.

use std::ffi::OsStr;
use std::time::Duration;

use crust_blockfs::probe;

use super::error::FormatError;
use super::run::{self, ImageLock, ProgramOutput, RunError};
use super::{FormatRequest, contents};

/// A whole check of a large file system takes long; kubelet asks again meanwhile, and is told so.
const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The bit of fsck's exit code for "errors corrected" (fsck(8)).
const CORRECTED: i32 = 1;
/// Something still is.
const UNCORRECTED: i32 = 4;

/// A file system that is there, to be checked.
#[derive(Debug)]
pub(crate) struct Fsck<'a>(FormatRequest<'a>);

impl<'a> Fsck<'a> {
    pub(super) fn of(wanted: FormatRequest<'a>) -> Self {
        Self(wanted)
    }

    /// Corrects what can be without asking. Where the check itself fails the mount has the last word.
    pub(crate) fn run(self) -> Result<(), FormatError> {
        let device = self.0.device.path();
        let checked = self.ask("fsck", &[OsStr::new("-a"), device.as_os_str()])?;
        let Some(mut ran) = checked else {
            tracing::warn!("{}: there is no fsck: not checked", device.display());
            return Ok(());
        };
        if Outcome::of(&ran) == Outcome::Unknown
            && let Some(again) = self.check_with_backup_superblock()?
        {
            ran = again;
        }
        match Outcome::of(&ran) {
            Outcome::Sound => Ok(()),
            Outcome::Corrected => {
                tracing::warn!("{}: corrected by fsck: {}", device.display(), ran.summary());
                Ok(())
            }
            Outcome::Unknown => {
                let (status, said) = (ran.status, ran.summary());
                tracing::warn!(
                    "{}: not checked by fsck: {status}: {said}",
                    device.display()
                );
                Ok(())
            }
            Outcome::Uncorrected => Err(FormatError::Uncorrected {
                device: device.to_owned(),
                said: ran.summary(),
            }),
            Outcome::Killed => Err(FormatError::ProgramFailed {
                program: "fsck",
                place: device.to_owned(),
                status: ran.status,
                said: ran.summary(),
            }),
        }
    }

    /// A program's word; `None` where it isn't there.
    fn ask(
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

    /// e2fsck(8) writes an ext's superblock in two parts, its checksum last: killed between them, it leaves one that
    /// it doesn't take for any more, and that nobody mounts. The first backup is as it was.
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
        self.ask(program, &arguments)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Sound,
    Corrected,
    Uncorrected,
    /// It has checked nothing, or not all.
    Unknown,
    /// In the midst of its work.
    Killed,
}

impl Outcome {
    fn of(ran: &ProgramOutput) -> Self {
        match ran.status.code() {
            None => Self::Killed,
            Some(0) => Self::Sound,
            Some(code) if code & UNCORRECTED != 0 => Self::Uncorrected,
            // That a reboot is advised with it is for a root file system.
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
    fn what_is_not_sound_is_mounted_only_where_fsck_did_not_look() {
        for (status, expected) in [
            (0, Outcome::Sound),
            (1 << 8, Outcome::Corrected),
            (3 << 8, Outcome::Corrected),
            (4 << 8, Outcome::Uncorrected),
            (5 << 8, Outcome::Uncorrected),
            (12 << 8, Outcome::Uncorrected),
            (8 << 8, Outcome::Unknown),
            (9 << 8, Outcome::Unknown),
            (16 << 8, Outcome::Unknown),
            (9, Outcome::Killed),
        ] {
            let ran = ProgramOutput {
                status: ExitStatus::from_raw(status),
                stdout: Vec::new(),
                stderr: Vec::new(),
            };
            assert_eq!(Outcome::of(&ran), expected, "{:?}", ran.status);
        }
    }
}

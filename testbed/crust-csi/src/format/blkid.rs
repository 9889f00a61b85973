//! blkid(8): the signatures that a device has, or an image.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::decide::BlkidResult;
use super::error::FormatError;
use super::run::{self, ProgramOutput};

/// It reads some kilobytes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Nothing was found; or nothing could be read, which is not told apart.
const NOTHING: i32 = 2;
/// More than one was found, and which one counts can't be told.
const AMBIVALENT: i32 = 8;

/// Probes a device or file by blkid(8), without its cache.
pub(super) fn probe(place: &Path) -> Result<BlkidResult, FormatError> {
    let mut arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]
        .map(OsStr::new)
        .to_vec();
    arguments.push(place.as_os_str());
    let ran = run::run("blkid", &arguments, None, TIMEOUT)?;
    Ok(said(&ran))
}

fn said(ran: &ProgramOutput) -> BlkidResult {
    let failed = || BlkidResult::Failed(format!("{}: {}", ran.status, ran.summary()));
    match ran.status.code() {
        Some(0) => signature(&ran.stdout).unwrap_or_else(failed),
        Some(NOTHING) if ran.stdout.is_empty() && ran.stderr.is_empty() => BlkidResult::Nothing,
        Some(AMBIVALENT) => BlkidResult::Several,
        _ => failed(),
    }
}

/// A partition table counts more than what else there is: whose data these are can't be told.
fn signature(output: &[u8]) -> Option<BlkidResult> {
    let output = std::str::from_utf8(output).ok()?;
    let value = |key: &str| {
        let mut lines = output.lines().filter_map(|line| line.split_once('='));
        let found = lines.find(|(name, value)| *name == key && !value.is_empty());
        found.map(|(_, value)| value.to_owned())
    };
    value("PTTYPE")
        .map(BlkidResult::PartitionTable)
        .or_else(|| value("TYPE").map(BlkidResult::Type))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    fn of(code: i32, stdout: &str, stderr: &str) -> BlkidResult {
        said(&ProgramOutput {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn what_blkid_says_is_one_thing_or_a_failure() {
        let ext4 = BlkidResult::Type("ext4".to_owned());
        let dos = BlkidResult::PartitionTable("dos".to_owned());
        for (code, stdout, expected) in [
            (0, "DEVNAME=/dev/loop0\nTYPE=ext4\n", &ext4),
            (0, "DEVNAME=/dev/loop0\nPTTYPE=dos\n", &dos),
            (0, "TYPE=ext4\nPTTYPE=dos\n", &dos),
            (0, "PTTYPE=\nTYPE=ext4\n", &ext4),
            (2, "", &BlkidResult::Nothing),
            (8, "", &BlkidResult::Several),
        ] {
            assert_eq!(&of(code, stdout, ""), expected, "{code} {stdout:?}");
        }
    }

    #[test]
    fn nothing_is_said_to_be_there_by_an_empty_answer_alone() {
        for (code, stdout, stderr) in [
            (0, "", ""),
            (0, "DEVNAME=/dev/loop0\n", ""),
            (0, "TYPE=\n", ""),
            (2, "", "blkid: error: /dev/loop0: Input/output error\n"),
            (2, "TYPE=ext4\n", ""),
            (1, "", ""),
            (4, "", "usage"),
        ] {
            let said = of(code, stdout, stderr);
            assert!(
                matches!(said, BlkidResult::Failed(_)),
                "{code} {stdout:?}: {said:?}"
            );
        }
        let killed = said(&ProgramOutput {
            status: ExitStatus::from_raw(9),
            stdout: Vec::new(),
            stderr: Vec::new(),
        });
        assert!(matches!(killed, BlkidResult::Failed(_)), "{killed:?}");
    }
}

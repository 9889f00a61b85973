//! Runs blkid(8) to find the signatures on a device or in an image.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use super::decide::BlkidResult;
use super::error::FormatError;
use super::run::{self, ProgramOutput};

/// blkid reads a few kilobytes. The timeout allows for a very slow disk.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code if nothing was found. It is the same if nothing could be read.
const NOTHING: i32 = 2;
/// The exit code if several signatures were found that contradict each other.
const AMBIVALENT: i32 = 8;

/// Probes a device or file with blkid(8), without blkid's cache.
pub(super) fn probe(path: &Path) -> Result<BlkidResult, FormatError> {
    let mut arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]
        .map(OsStr::new)
        .to_vec();
    arguments.push(path.as_os_str());
    let output = run::run("blkid", &arguments, None, TIMEOUT)?;
    Ok(parse_result(&output))
}

fn parse_result(output: &ProgramOutput) -> BlkidResult {
    let failed = || BlkidResult::Failed(format!("{}: {}", output.status, output.summary()));
    match output.status.code() {
        Some(0) => signature(&output.stdout).unwrap_or_else(failed),
        Some(NOTHING) if output.stdout.is_empty() && output.stderr.is_empty() => {
            BlkidResult::Nothing
        }
        Some(AMBIVALENT) => BlkidResult::Several,
        _ => failed(),
    }
}

/// Parses blkid's output. A partition table takes precedence over a file system, because then the contents are unknown.
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

    fn result(code: i32, stdout: &str, stderr: &str) -> BlkidResult {
        parse_result(&ProgramOutput {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        })
    }

    #[test]
    fn the_output_of_blkid_is_one_result() {
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
            assert_eq!(&result(code, stdout, ""), expected, "{code} {stdout:?}");
        }
    }

    #[test]
    fn only_exit_code_2_without_output_means_nothing() {
        for (code, stdout, stderr) in [
            (0, "", ""),
            (0, "DEVNAME=/dev/loop0\n", ""),
            (0, "TYPE=\n", ""),
            (2, "", "blkid: error: /dev/loop0: Input/output error\n"),
            (2, "TYPE=ext4\n", ""),
            (1, "", ""),
            (4, "", "usage"),
        ] {
            let result = result(code, stdout, stderr);
            assert!(
                matches!(result, BlkidResult::Failed(_)),
                "{code} {stdout:?}: {result:?}"
            );
        }
        let killed = parse_result(&ProgramOutput {
            status: ExitStatus::from_raw(9),
            stdout: Vec::new(),
            stderr: Vec::new(),
        });
        assert!(matches!(killed, BlkidResult::Failed(_)), "{killed:?}");
    }
}

//! The input and output of commands: manifests, standard output and standard error.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;

/// The error of a failed write to standard output.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
pub(super) struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether the reader of the output has ended, as after `| head`.
    pub(super) fn is_reader_gone(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes to standard output and flushes it, so that output appears at once.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref())?;
    Ok(stdout.flush()?)
}

/// Writes to standard error. Errors are ignored, because they could not be reported.
pub(super) fn eprint(text: impl AsRef<[u8]>) {
    let _ = io::stderr().lock().write_all(text.as_ref());
}

/// The largest manifest, in bytes. A gRPC message may have 4 MiB, including the fields around the manifest.
const MAX_MANIFEST_SIZE: u64 = 4 * 1024 * 1024 - 4096;

/// The error of a file that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}", path.display())]
pub(super) struct FileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Reads a manifest. The path `-` is standard input.
pub(super) fn read_manifest(path: &Path) -> Result<String, FileError> {
    let text = if path == Path::new("-") {
        read_standard_input()
    } else {
        bounded::read_to_string(path, MAX_MANIFEST_SIZE)
    };
    text.map_err(|source| FileError {
        path: path.to_owned(),
        source,
    })
}

fn read_standard_input() -> io::Result<String> {
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let text = String::from_utf8(bounded::read_open(&stdin, MAX_MANIFEST_SIZE)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

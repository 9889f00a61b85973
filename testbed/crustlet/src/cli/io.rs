//! The input and output of commands: manifests, standard output and standard error.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;

/// Standard output can't be written to.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
pub(super) struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether the reader has ended, as after `| head`.
    pub(super) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes to standard output, and flushes it: somebody may be watching.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref())?;
    Ok(stdout.flush()?)
}

/// Writes a message to standard error. A failure is ignored: there is nobody to report it to.
pub(super) fn tell(text: impl AsRef<[u8]>) {
    let _ = io::stderr().lock().write_all(text.as_ref());
}

/// The most bytes of a manifest: a message of gRPC has 4 MiB at most, with what is around it.
const LARGEST: u64 = 4 * 1024 * 1024 - 4096;

/// A file that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}", path.display())]
pub(super) struct FileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Returns the text of a file with manifests. `-` is standard input.
pub(super) fn read_manifest(path: &Path) -> Result<String, FileError> {
    let text = if path == Path::new("-") {
        standard_input()
    } else {
        bounded::read_to_string(path, LARGEST)
    };
    text.map_err(|source| FileError {
        path: path.to_owned(),
        source,
    })
}

fn standard_input() -> io::Result<String> {
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let text = String::from_utf8(bounded::read_open(&stdin, LARGEST)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

//! Files with manifests.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use crust_blockfs::bounded;

/// In bytes: one call of gRPC takes 4 MiB, with what is around them.
const LARGEST: u64 = 4 * 1024 * 1024 - 4096;

/// A file that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}", path.display())]
pub(super) struct FileError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The text of a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<String, FileError> {
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

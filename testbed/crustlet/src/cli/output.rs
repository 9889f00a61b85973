//! Standard output, and standard error.

use std::io::{self, Write};

/// Standard output can't be written to.
#[derive(Debug, thiserror::Error)]
#[error("write to standard output")]
pub(super) struct OutputError(#[from] io::Error);

impl OutputError {
    /// Whether nobody reads any more, as after `| head`.
    pub(super) fn is_unread(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// What was asked for. It is out at once: somebody may be watching.
pub(super) fn print(text: impl AsRef<[u8]>) -> Result<(), OutputError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_ref())?;
    Ok(stdout.flush()?)
}

/// What is said besides. Where nobody can read it there is nobody to tell.
pub(super) fn tell(text: impl AsRef<[u8]>) {
    let _ = io::stderr().lock().write_all(text.as_ref());
}

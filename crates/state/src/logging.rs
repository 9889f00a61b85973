//! What runcrust and its hook have to say beside errors, for the file that `log` names.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

/// Sends events to the end of `path`. Standard output and error are the container's, so without a
/// file nothing is written; a log that can't be opened is no reason not to start a container.
pub fn start(path: Option<&Path>) {
    let Some(path) = path else { return };
    let Ok(file) = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
    else {
        return;
    };
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(Mutex::new(file));
    // Only a second call could fail.
    let _ = subscriber.try_init();
}

//! Reads containers' logs. Their lines have the CRI's format: `2026-01-01T00:00:00.000000000Z stdout F text`, with `P`
//! instead of `F` for a partial line.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// The interval at which the end of a log is checked for new lines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The number of bytes that are read at once.
const CHUNK_SIZE: usize = 64 * 1024;

/// Returns a container's output from its log as a stream. Without `is_running`, the stream ends at the end of the file.
/// Otherwise it ends at the end of the file after `is_running` has returned false.
pub(super) fn read<F: Future<Output = bool> + Send>(
    path: PathBuf,
    is_running: Option<impl Fn() -> F + Send + Sync + 'static>,
) -> ReceiverStream<Result<Vec<u8>, String>> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let read_error = |error: io::Error| Err(format!("{}: {error}", path.display()));
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) => return drop(sender.send(read_error(error)).await),
        };
        let mut rest = Vec::new();
        loop {
            // Whether the container is running is checked before reading, so that the last output of a container that
            // has just ended is read too.
            let is_running_now = match &is_running {
                Some(is_running) => is_running().await,
                None => false,
            };
            loop {
                let mut chunk = vec![0; CHUNK_SIZE];
                match file.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(length) => rest.extend_from_slice(&chunk[..length]),
                    Err(error) => return drop(sender.send(read_error(error)).await),
                }
                let text = take_output(&mut rest);
                if !text.is_empty() && sender.send(Ok(text)).await.is_err() {
                    return;
                }
            }
            if !is_running_now {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = sender.closed() => return,
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Removes the complete lines from the `bytes` read from a log, and returns the container's output in them.
fn take_output(bytes: &mut Vec<u8>) -> Vec<u8> {
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        return Vec::new();
    };
    let rest = bytes.split_off(end + 1);
    let lines = std::mem::replace(bytes, rest);
    let mut text = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (_time, _stream, tag) = (parts.next(), parts.next(), parts.next());
        match (tag, parts.next()) {
            (Some(b"P"), Some(part)) => {
                text.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            }
            (Some(_), Some(whole)) => text.extend_from_slice(whole),
            // A line in another format is returned as it is.
            _ => text.extend_from_slice(line),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_lines_are_joined() {
        let mut read =
            b"t stdout F one\nt stderr P tw\nt stdout F o \nodd\nt stdout F thr".to_vec();
        assert_eq!(take_output(&mut read), b"one\ntwo \nodd\n");
        assert_eq!(take_output(&mut read), b"");
        read.extend_from_slice(b"ee\n");
        assert_eq!(take_output(&mut read), b"three\n");
    }
}

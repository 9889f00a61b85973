//! Reads containers' logs, whose lines have the CRI's form: `2026-01-01T00:00:00.000000000Z stdout F text`, and `P` for
//! a part of a line.

use std::io::{self, Read as _};
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// How often a log that has no more is looked at again.
const PAUSE: Duration = Duration::from_millis(200);

/// Read at once, in bytes.
const CHUNK: usize = 64 * 1024;

/// Reads what a container wrote: to the end of the file, or with `is_running` until that is false.
pub(super) fn read<F: Future<Output = bool> + Send>(
    path: PathBuf,
    is_running: Option<impl Fn() -> F + Send + Sync + 'static>,
) -> ReceiverStream<Result<Vec<u8>, String>> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let failed = |error: io::Error| Err(format!("{}: {error}", path.display()));
        let mut file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) => return drop(sender.send(failed(error)).await),
        };
        let mut rest = Vec::new();
        loop {
            // Asked before reading: what was written before it ended is read then.
            let goes_on = match &is_running {
                Some(is_running) => is_running().await,
                None => false,
            };
            loop {
                let mut chunk = vec![0; CHUNK];
                match file.read(&mut chunk) {
                    Ok(0) => break,
                    Ok(length) => rest.extend_from_slice(&chunk[..length]),
                    Err(error) => return drop(sender.send(failed(error)).await),
                }
                let text = take(&mut rest);
                if !text.is_empty() && sender.send(Ok(text)).await.is_err() {
                    return;
                }
            }
            if !goes_on {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = sender.closed() => return,
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Takes the whole lines out of what was read: what the container wrote of each.
fn take(read: &mut Vec<u8>) -> Vec<u8> {
    let Some(end) = read.iter().rposition(|byte| *byte == b'\n') else {
        return Vec::new();
    };
    let rest = read.split_off(end + 1);
    let lines = std::mem::replace(read, rest);
    let mut text = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (_time, _stream, tag) = (parts.next(), parts.next(), parts.next());
        match (tag, parts.next()) {
            (Some(b"P"), Some(part)) => {
                text.extend_from_slice(part.strip_suffix(b"\n").unwrap_or(part));
            }
            (Some(_), Some(whole)) => text.extend_from_slice(whole),
            // Not the CRI's: shown as it is.
            _ => text.extend_from_slice(line),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_as_they_were_written() {
        let mut read =
            b"t stdout F one\nt stderr P tw\nt stdout F o \nodd\nt stdout F thr".to_vec();
        assert_eq!(take(&mut read), b"one\ntwo \nodd\n");
        assert_eq!(take(&mut read), b"");
        read.extend_from_slice(b"ee\n");
        assert_eq!(take(&mut read), b"three\n");
    }
}

//! The log: lines on standard error, or entries with structured fields in systemd's journal.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::str::FromStr;

use crust_state::printable::printable;
use serde::Deserialize;
use serde::de::IntoDeserializer as _;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// The prefix of field names in the journal: `CRUST_VOLUME`. Names without a prefix are the journal's own.
const FIELD_PREFIX: &str = "CRUST";

/// The level of the log. Each level includes the levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures of the daemon itself.
    Error,
    /// Refusals, failed calls and suspicious findings.
    Warn,
    /// Every call, with its result.
    #[default]
    Info,
    /// Details for finding the cause of a problem.
    Debug,
    /// Everything, including the details of libraries.
    Trace,
}

/// Parses the same names as a configuration file.
impl FromStr for LogLevel {
    type Err = serde::de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(text.into_deserializer())
    }
}

/// Starts the log. `identifier` is the process's `SYSLOG_IDENTIFIER` in the journal.
pub fn start(level: LogLevel, identifier: &str) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| PrintableLines(std::io::stderr()))
        .with_ansi(false);
    let is_journal = is_journal();
    let journal = if is_journal {
        tracing_journald::layer().ok()
    } else {
        None
    };
    let log = match journal {
        Some(journal) => journal
            .with_field_prefix(Some(FIELD_PREFIX.to_owned()))
            .with_syslog_identifier(identifier.to_owned())
            .with_priority_mappings(PriorityMappings {
                info: Priority::Informational,
                debug: Priority::Debug,
                ..PriorityMappings::new()
            })
            .boxed(),
        // The journal adds the time to each line.
        None if is_journal => lines.without_time().boxed(),
        None => lines.boxed(),
    };
    tracing_subscriber::registry()
        .with(log.with_filter(level))
        .init();
}

/// A writer that escapes unprintable characters in each line. Text that comes from a request must not add lines to the
/// log, or change how a line looks in a terminal.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    /// Writes one event as a line. The formatter of tracing-subscriber passes each event in a single call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // A single write(2), so that lines of different threads don't mix.
        self.0
            .write_all(format!("{}\n", printable(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes the error that ends the process to standard error. Can be called before [`start`].
pub fn fatal(identifier: &str, message: &str) {
    // The priority LOG_ERR, as a prefix of the line (sd-daemon(3)).
    let priority = if is_journal() { "<3>" } else { "" };
    eprintln!("{priority}{identifier}: {message}");
}

/// Returns whether standard error is connected to the journal.
#[expect(
    clippy::disallowed_methods,
    reason = "the variable is compared with the actual standard error"
)]
fn is_journal() -> bool {
    let stream = std::env::var_os("JOURNAL_STREAM");
    let stderr = rustix::fs::fstat(std::io::stderr());
    stream
        .zip(stderr.ok())
        .is_some_and(|(stream, stderr)| matches_stream(&stream, stderr.st_dev, stderr.st_ino))
}

/// Returns whether the value of `JOURNAL_STREAM` has this device and inode (systemd.exec(5)). Child processes inherit
/// the variable even if their standard error was redirected.
fn matches_stream(stream: &OsStr, device: u64, inode: u64) -> bool {
    *stream == *format!("{device}:{inode}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;

    use super::*;

    /// The lines that were logged.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Captured {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Captured {
        fn write(&mut self, event: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(event)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Captures the log of this thread until the guard is dropped.
    pub(crate) fn captured() -> (Captured, DefaultGuard) {
        let captured = Captured::default();
        let writer = captured.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .with_filter(LevelFilter::INFO);
        let log = tracing_subscriber::registry().with(lines);
        (captured, tracing::subscriber::set_default(log))
    }

    #[test]
    fn levels_are_parsed_in_lower_case() {
        assert_eq!("warn".parse(), Ok(LogLevel::Warn));
        let error = "Warn".parse::<LogLevel>().unwrap_err().to_string();
        assert!(error.contains("`error`, `warn`, `info`"), "{error}");
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let mut written = Vec::new();
        let event = "WARN pv\u{202e}1: a\nb\u{1b}[2J\n";
        PrintableLines(&mut written)
            .write_all(event.as_bytes())
            .unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "WARN pv\\u{202e}1: a\\nb\\u{1b}[2J\n"
        );
    }

    #[test]
    fn the_journals_stream_is_recognized_by_device_and_inode() {
        let matches = |stream: &str| matches_stream(OsStr::new(stream), 8, 21);
        assert!(matches("8:21"));
        for other in ["", "8", "8:2", "8:211", "9:21", "21:8", "8:21\n"] {
            assert!(!matches(other), "{other:?}");
        }
    }
}

//! The log: lines on standard error, or entries with fields in systemd's journal.

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

/// Before the names of fields: `CRUST_VOLUME`. Those without a prefix are the journal's own.
const PREFIX: &str = "CRUST";

/// The level of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Failures of the daemon itself.
    Error,
    /// Refusals, failed calls, and what looks wrong.
    Warn,
    /// Every call, too.
    #[default]
    Info,
    /// Details for the search for a problem.
    Debug,
    /// All details.
    Trace,
}

/// Parses a level as a configuration does.
impl FromStr for LogLevel {
    type Err = serde::de::value::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::deserialize(text.into_deserializer())
    }
}

/// Starts the log. `identifier` is the name of the process in the journal.
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
            .with_field_prefix(Some(PREFIX.to_owned()))
            .with_syslog_identifier(identifier.to_owned())
            .with_priority_mappings(PriorityMappings {
                info: Priority::Informational,
                debug: Priority::Debug,
                ..PriorityMappings::new()
            })
            .boxed(),
        // It keeps the time of each line itself.
        None if is_journal => lines.without_time().boxed(),
        None => lines.boxed(),
    };
    tracing_subscriber::registry()
        .with(log.with_filter(level))
        .init();
}

/// Writes each line with what isn't printable in it escaped: whoever is quoted must not write lines
/// of his own, nor reorder one on a reader's terminal.
struct PrintableLines<W>(W);

impl<W: Write> Write for PrintableLines<W> {
    /// Takes a whole event, as tracing-subscriber's formatter hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // One write(2), so that lines of several threads don't mix.
        self.0
            .write_all(format!("{}\n", printable(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The last word of a process that can't go on, also where nothing was set up for a log yet.
pub fn fatal(identifier: &str, sentence: &str) {
    // sd-daemon(3): the priority of a line on standard error, LOG_ERR.
    let priority = if is_journal() { "<3>" } else { "" };
    eprintln!("{priority}{identifier}: {sentence}");
}

/// Whether standard error is the journal's.
#[expect(
    clippy::disallowed_methods,
    reason = "systemd's word, which is compared with what standard error is"
)]
fn is_journal() -> bool {
    let stream = std::env::var_os("JOURNAL_STREAM");
    let stderr = rustix::fs::fstat(std::io::stderr());
    stream
        .zip(stderr.ok())
        .is_some_and(|(stream, stderr)| is_named(&stream, stderr.st_dev, stderr.st_ino))
}

/// `JOURNAL_STREAM` is handed on to children, whatever becomes of their standard error: it names the
/// stream's device and inode (systemd.exec(5)).
fn is_named(stream: &OsStr, device: u64, inode: u64) -> bool {
    *stream == *format!("{device}:{inode}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;

    use super::*;

    /// Lines that were logged.
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

    /// Captures what this thread logs, until the guard is dropped.
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
    fn a_flag_says_the_level_as_a_configuration_does() {
        assert_eq!("warn".parse(), Ok(LogLevel::Warn));
        let error = "Warn".parse::<LogLevel>().unwrap_err().to_string();
        assert!(error.contains("`error`, `warn`, `info`"), "{error}");
    }

    #[test]
    fn an_event_is_one_line_that_a_terminal_does_not_obey() {
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
    fn the_journals_stream_is_known_by_its_inode() {
        let named = |stream: &str| is_named(OsStr::new(stream), 8, 21);
        assert!(named("8:21"));
        for other in ["", "8", "8:2", "8:211", "9:21", "21:8", "8:21\n"] {
            assert!(!named(other), "{other:?}");
        }
    }
}

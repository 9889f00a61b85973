//! The log: lines on standard error, or entries with fields in systemd's journal.

use std::ffi::OsStr;

use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::settings::LogLevel;

/// Before the names of fields: `CRUST_VOLUME`. Those without a prefix are the journal's own.
const PREFIX: &str = "CRUST";

/// Has all that is logged from here on go there.
pub(crate) fn start(level: LogLevel) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
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
            .with_syslog_identifier("crust_ops".to_owned())
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

/// The last word of a process that can't go on, also where nothing was set up for a log yet.
pub(crate) fn fatal(sentence: &str) {
    // sd-daemon(3): the priority of a line on standard error, LOG_ERR.
    let priority = if is_journal() { "<3>" } else { "" };
    eprintln!("{priority}crust_ops: {sentence}");
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
mod tests {
    use super::*;

    #[test]
    fn the_journals_stream_is_known_by_its_inode() {
        let named = |stream: &str| is_named(OsStr::new(stream), 8, 21);
        assert!(named("8:21"));
        for other in ["", "8", "8:2", "8:211", "9:21", "21:8", "8:21\n"] {
            assert!(!named(other), "{other:?}");
        }
    }
}

//! A tracing subscriber that writes events as lines to a file. It replaces the crate `tracing-subscriber`, whose
//! support for spans, filters and threads would be half of the binary of a program that starts with every container
//! (docs/performance.md). runcrust has no spans.

use std::fmt::{self, Debug, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::printable::printable;

/// Writes each event of level [`Level::INFO`] or higher as a line. Each line is one write(2), because other processes
/// may have the file open.
#[derive(Debug)]
pub(super) struct FileSubscriber(pub(super) File);

impl Subscriber for FileSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let line = line(event, SystemTime::now());
        // An error is ignored: a container has to start without a log.
        let _ = (&self.0).write_all(line.as_bytes());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Formats an event: `<RFC 3339>  WARN crust_volume: message key=value`. The line has only the crate of the event's
/// target, because the names of modules change.
fn line(event: &Event<'_>, now: SystemTime) -> String {
    let metadata = event.metadata();
    let target = metadata.target();
    let crate_name = target.split_once("::").map_or(target, |(name, _)| name);
    let mut text = EventText::default();
    event.record(&mut text);
    let EventText { message, fields } = text;
    format!(
        "{} {:>5} {crate_name}: {message}{fields}\n",
        humantime::format_rfc3339_micros(now),
        metadata.level().as_str(),
    )
}

/// The message of an event, and ` key=value` for each of its other fields.
#[derive(Default)]
struct EventText {
    message: OneLine,
    fields: OneLine,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// A string in which line ends and other characters that aren't printable are escaped.
#[derive(Default)]
struct OneLine(String);

impl fmt::Write for OneLine {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(&printable(text));
        Ok(())
    }
}

impl fmt::Display for OneLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_written_as_one_line() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = FileSubscriber(log.reopen().unwrap());
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(
                volume = "pv-1",
                number = 7,
                "it's {}",
                "odd\n\u{1b}[1m\u{202e}"
            );
            tracing::info!("logged");
            tracing::debug!("not logged");
        });
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines: Vec<&str> = text
            .lines()
            .map(|line| {
                let (time, rest) = line.split_once(' ').unwrap();
                humantime::parse_rfc3339(time).unwrap();
                rest
            })
            .collect();
        assert_eq!(
            lines,
            [
                " WARN crust_state: it's odd\\n\\u{1b}[1m\\u{202e} volume=\"pv-1\" number=7",
                " INFO crust_state: logged",
            ]
        );
    }
}

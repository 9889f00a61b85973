//! A tracing subscriber that writes events as lines to a file, and shows progress on a terminal. It replaces the crate
//! `tracing-subscriber`, whose support for spans, filters and threads would be half of the binary of a program that
//! starts with every container (docs/performance.md). runcrust has no spans.

use std::fmt::{self, Debug, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::printable::printable;

/// Writes each event of level [`Level::INFO`] or higher as a line to the log, if there is one, and shows each event
/// about progress on the terminal, if there is one.
#[derive(Debug)]
pub(super) struct LogSubscriber {
    pub(super) file: Option<File>,
}

impl LogSubscriber {
    fn is_logged(&self, metadata: &Metadata<'_>) -> bool {
        self.file.is_some() && *metadata.level() <= Level::INFO
    }
}

/// Returns whether an event is about progress: whether a module with the name `progress` reported it.
fn is_progress(metadata: &Metadata<'_>) -> bool {
    metadata.target().ends_with("::progress")
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.is_logged(metadata) || is_progress(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let text = EventText::from_event(event);
        if is_progress(metadata) {
            super::show_progress(&text.to_string());
        }
        if let Some(mut file) = self.file.as_ref().filter(|_| self.is_logged(metadata)) {
            let line = line(metadata, &text, SystemTime::now());
            // One write(2), because other processes may have the file open. An error is ignored: a container has to
            // start without a log.
            let _ = file.write_all(line.as_bytes());
        }
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
fn line(metadata: &Metadata<'_>, text: &EventText, now: SystemTime) -> String {
    let target = metadata.target();
    let crate_name = target.split_once("::").map_or(target, |(name, _)| name);
    format!(
        "{} {:>5} {crate_name}: {text}\n",
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

impl EventText {
    fn from_event(event: &Event<'_>) -> Self {
        let mut text = Self::default();
        event.record(&mut text);
        text
    }
}

impl fmt::Display for EventText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.message, self.fields)
    }
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
        let file = Some(log.reopen().unwrap());
        let subscriber = LogSubscriber { file };
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

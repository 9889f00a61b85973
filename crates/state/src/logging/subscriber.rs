//! Events as lines of a file. A subscriber of some eighty lines instead of tracing's own: that one's tables
//! of spans, filters and threads are half of what a program carries that starts with every container
//! (docs/performance.md), and nothing here has a span.

use std::fmt::{self, Debug, Write as _};
use std::fs::File;
use std::io::Write as _;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::printable::printable;

/// Writes each event of at least [`Level::INFO`] as a line, with one write(2): others may have the file open.
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
        // Whoever can't log goes on.
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

/// Returns the line of an event: `<RFC 3339>  WARN crust_volume: message key=value`. Of the target only the crate is
/// in it: modules are renamed.
fn line(event: &Event<'_>, now: SystemTime) -> String {
    let metadata = event.metadata();
    let target = metadata.target();
    let crate_name = target.split_once("::").map_or(target, |(name, _)| name);
    let mut said = Said::default();
    event.record(&mut said);
    let Said { message, fields } = said;
    format!(
        "{} {:>5} {crate_name}: {message}{fields}\n",
        humantime::format_rfc3339_micros(now),
        metadata.level().as_str(),
    )
}

/// An event's message, and ` key=value` for each of its other fields. Nothing in it ends the line.
#[derive(Default)]
struct Said {
    message: OneLine,
    fields: OneLine,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string can't fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

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
    fn an_event_is_a_line() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let lines = FileSubscriber(log.reopen().unwrap());
        tracing::subscriber::with_default(lines, || {
            tracing::warn!(
                volume = "pv-1",
                number = 7,
                "it's {}",
                "odd\n\u{1b}[1m\u{202e}"
            );
            tracing::info!("told");
            tracing::debug!("not told");
        });
        let text = std::fs::read_to_string(log.path()).unwrap();
        let told: Vec<&str> = text
            .lines()
            .map(|line| {
                let (time, rest) = line.split_once(' ').unwrap();
                humantime::parse_rfc3339(time).unwrap();
                rest
            })
            .collect();
        assert_eq!(
            told,
            [
                " WARN crust_state: it's odd\\n\\u{1b}[1m\\u{202e} volume=\"pv-1\" number=7",
                " INFO crust_state: told",
            ]
        );
    }
}

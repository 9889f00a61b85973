//! Reports fatal errors to the caller (docs/callers.md).
//!
//! containerd's shim takes the last line with level `error` from the file of `--log`, and kubelet shows its message.
//! One line that isn't JSON makes the whole file unreadable for the shim. Errors also go to stderr, but containerd
//! opens stderr read-only for a sandbox, so write errors there are ignored.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crust_state::{DelegateKind, error_message, logging};

use crate::invocation::{GlobalFlags, LogFormat};

/// Exit code of a successful call.
pub(crate) const SUCCESS: u8 = 0;
/// Exit code of a failed call.
pub(crate) const FAILURE: u8 = 1;

/// The format of a line in the delegate's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogLineFormat {
    /// logrus' `JSONFormatter`. go-runc and conmon parse it.
    Json,
    /// logrus' `TextFormatter`.
    Logrus,
    /// The message alone, as in crun's text log. youki's own lines begin with the time and a module's name.
    Plain,
}

/// Reports fatal errors to the delegate's log, if the caller named one, and to stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorReporter {
    log: Option<(PathBuf, LogLineFormat)>,
}

impl ErrorReporter {
    /// Creates a reporter that writes to the log that the delegate would use.
    ///
    /// `bundle` is the bundle of a `create`, `run` or `restore`. crun changes its working directory to the bundle
    /// before it opens a relative log path; runc doesn't.
    pub(crate) fn new(kind: DelegateKind, globals: &GlobalFlags, bundle: Option<&Path>) -> Self {
        let format = match (globals.log_format, kind) {
            (LogFormat::Json, _) => LogLineFormat::Json,
            (LogFormat::Text, DelegateKind::Runc) => LogLineFormat::Logrus,
            (LogFormat::Text, DelegateKind::Crun | DelegateKind::Youki) => LogLineFormat::Plain,
        };
        let path = globals.log.as_deref().and_then(|log| match kind {
            DelegateKind::Runc | DelegateKind::Youki => Some(log.to_path_buf()),
            DelegateKind::Crun => crun_log_file(log).map(|path| match bundle {
                Some(bundle) => bundle.join(path),
                None => path.to_path_buf(),
            }),
        });
        Self {
            log: path.map(|path| (path, format)),
        }
    }

    /// Makes panics be reported like other fatal errors, so that the caller finds them in the log.
    pub(crate) fn install_panic_hook(&self) {
        let reporter = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            reporter.report_fatal(&anyhow::anyhow!("runcrust {panic}"));
        }));
    }

    /// Writes `error` and its causes to the log, then to stderr. Write errors are ignored.
    pub(crate) fn report_fatal(&self, error: &anyhow::Error) {
        logging::clear_progress();
        let sentence = error_message(error.as_ref());
        if let Some((path, format)) = &self.log {
            let text = format.format(&sentence, SystemTime::now());
            // There is no place to report a failed write; stderr gets the message in any case.
            let _ = append(path, &text);
        }
        // One write, so that lines of runtimes that share a stderr don't mix. `eprintln!` would panic if stderr is
        // read-only.
        let _ = io::stderr().write_all(format!("{sentence}\n").as_bytes());
    }
}

/// Returns the file that crun's `--log` names with `PATH` or `file:PATH`.
///
/// Returns `None` for `journald:ID` and `syslog:ID`, and for other prefixes, which crun rejects (crun(1)).
fn crun_log_file(log: &Path) -> Option<&Path> {
    let bytes = log.as_os_str().as_bytes();
    let path = match bytes.strip_prefix(b"file:") {
        Some(path) => path,
        None if bytes.contains(&b':') => return None,
        None => bytes,
    };
    (!path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)))
}

/// Appends `text` with one write(2), because the shim may read the file at the same time.
fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)?
        .write_all(text.as_bytes())
}

impl LogLineFormat {
    /// Formats a line at level `error`, with a newline.
    fn format(self, sentence: &str, now: SystemTime) -> String {
        let time = humantime::format_rfc3339_seconds(now);
        match self {
            Self::Json => {
                let message = serde_json::Value::from(sentence);
                format!("{{\"level\":\"error\",\"msg\":{message},\"time\":\"{time}\"}}\n")
            }
            Self::Logrus => {
                let message = sentence.replace('\\', "\\\\").replace('"', "\\\"");
                format!("time=\"{time}\" level=error msg=\"{message}\"\n")
            }
            Self::Plain => format!("{sentence}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use anyhow::{Context, anyhow};
    use proptest::prelude::*;

    use super::*;

    fn globals(log: &str, log_format: LogFormat) -> GlobalFlags {
        GlobalFlags {
            root: None,
            log: Some(log.into()),
            log_format,
        }
    }

    #[test]
    fn the_log_is_the_delegates() {
        use DelegateKind::{Crun, Runc, Youki};
        let bundle = Some(Path::new("/b"));
        for (kind, log, bundle, expected) in [
            (Runc, "/l", bundle, Some("/l")),
            (Runc, "l", bundle, Some("l")),
            (Runc, "file:l", bundle, Some("file:l")),
            (Youki, "l", bundle, Some("l")),
            (Crun, "/l", bundle, Some("/l")),
            (Crun, "l", bundle, Some("/b/l")),
            (Crun, "l", None, Some("l")),
            (Crun, "file:/l", bundle, Some("/l")),
            (Crun, "file:l", bundle, Some("/b/l")),
            (Crun, "file:", bundle, None),
            (Crun, "journald:id", bundle, None),
            (Crun, "syslog:id", bundle, None),
            (Crun, "else:where", bundle, None),
        ] {
            let reporter = ErrorReporter::new(kind, &globals(log, LogFormat::Json), bundle);
            let path = reporter
                .log
                .as_ref()
                .map(|(path, _)| path.to_str().unwrap());
            assert_eq!(path, expected, "{kind:?} --log {log}");
        }
        assert_eq!(
            ErrorReporter::new(Runc, &GlobalFlags::default(), None).log,
            None
        );
    }

    #[test]
    fn a_json_line_has_go_runcs_format() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        assert_eq!(
            LogLineFormat::Json.format("no \"x\" in C:\\ é", now),
            "{\"level\":\"error\",\"msg\":\"no \\\"x\\\" in C:\\\\ é\",\"time\":\"2026-09-21T14:13:20Z\"}\n"
        );
    }

    #[test]
    fn a_text_line_has_the_format_of_its_delegate() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(
            LogLineFormat::Logrus.format("no \"x\" in C:\\", now),
            "time=\"1970-01-01T00:00:00Z\" level=error msg=\"no \\\"x\\\" in C:\\\\\"\n"
        );
        assert_eq!(LogLineFormat::Plain.format("no \"x\"", now), "no \"x\"\n");
        for (kind, format) in [
            (DelegateKind::Runc, LogLineFormat::Logrus),
            (DelegateKind::Crun, LogLineFormat::Plain),
        ] {
            let reporter = ErrorReporter::new(kind, &globals("/l", LogFormat::Text), None);
            assert_eq!(reporter.log, Some(("/l".into(), format)));
        }
    }

    #[test]
    fn an_error_is_appended_to_the_log_as_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.json");
        fs::write(&log, "{\"level\":\"info\"}\n").unwrap();
        let globals = globals(log.to_str().unwrap(), LogFormat::Json);
        let error = Err::<(), _>(io::Error::from_raw_os_error(13))
            .context("a\nb")
            .unwrap_err();
        ErrorReporter::new(DelegateKind::Runc, &globals, None).report_fatal(&error);
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let line: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(line["level"], "error");
        assert_eq!(line["msg"], "a b: Permission denied (os error 13)");
        humantime::parse_rfc3339(line["time"].as_str().unwrap()).unwrap();
    }

    #[test]
    fn a_new_log_is_readable_and_a_failure_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = anyhow!("x");
        ErrorReporter::new(
            DelegateKind::Crun,
            &globals("log", LogFormat::Text),
            Some(dir.path()),
        )
        .report_fatal(&error);
        assert_eq!(fs::read_to_string(&log).unwrap(), "x\n");
        assert_eq!(fs::metadata(&log).unwrap().mode() & 0o400, 0o400);
        let nowhere = dir.path().join("no/such/dir");
        let nowhere = globals(nowhere.to_str().unwrap(), LogFormat::Json);
        ErrorReporter::new(DelegateKind::Runc, &nowhere, None).report_fatal(&error);
    }

    proptest! {
        #[test]
        fn any_message_becomes_one_line_that_parses(parts in prop::collection::vec(any::<String>(), 1..4)) {
            let mut error = anyhow!(parts[0].clone());
            for part in &parts[1..] {
                error = error.context(part.clone());
            }
            let sentence = error_message(error.as_ref());
            prop_assert!(!sentence.contains(char::is_control));
            let line = LogLineFormat::Json.format(&sentence, SystemTime::now());
            prop_assert_eq!(line.matches('\n').count(), 1);
            let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(parsed["msg"].as_str(), Some(sentence.as_str()));
            prop_assert_eq!(LogLineFormat::Logrus.format(&sentence, SystemTime::now()).matches('\n').count(), 1);
        }
    }
}

//! How a fatal error reaches the caller (docs/callers.md).
//!
//! containerd's shim takes the last line of `--log` with level `error` and is spoilt by any
//! line that isn't JSON; kubelet shows that sentence. Without a log there is stderr, which
//! containerd opens read-only for a sandbox: nothing that goes wrong there is an error.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crust_state::{DelegateKind, sentence};

use crate::invocation::{GlobalFlags, LogFormat};

/// The exit code of a successful call.
pub(crate) const SUCCESS: u8 = 0;
/// The exit code of a failed call.
pub(crate) const FAILURE: u8 = 1;

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogLineFormat {
    /// logrus' `JSONFormatter`, which go-runc and conmon read.
    Json,
    /// logrus' `TextFormatter`.
    Logrus,
    /// The bare sentence, as in crun's text log. youki's own begins with the time and a module's name.
    Plain,
}

/// The places that a fatal error is reported to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ErrorReporter {
    log: Option<(PathBuf, LogLineFormat)>,
}

impl ErrorReporter {
    /// The delegate's own log. `bundle` is that of a `create`, `run` or `restore`: crun changes
    /// to it before it opens a relative log, runc doesn't.
    pub(crate) fn new(kind: DelegateKind, globals: &GlobalFlags, bundle: Option<&Path>) -> Self {
        let line = match (globals.log_format, kind) {
            (LogFormat::Json, _) => LogLineFormat::Json,
            (LogFormat::Text, DelegateKind::Runc) => LogLineFormat::Logrus,
            (LogFormat::Text, DelegateKind::Crun | DelegateKind::Youki) => LogLineFormat::Plain,
        };
        let path = globals.log.as_deref().and_then(|log| match kind {
            DelegateKind::Runc | DelegateKind::Youki => Some(log.to_path_buf()),
            DelegateKind::Crun => crun_file(log).map(|path| match bundle {
                Some(bundle) => bundle.join(path),
                None => path.to_path_buf(),
            }),
        });
        Self {
            log: path.map(|path| (path, line)),
        }
    }

    /// Has a panic told as any other fatal error: a caller reads the log.
    pub(crate) fn install_panic_hook(&self) {
        let report = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            report.fatal(&anyhow::anyhow!("runcrust {panic}"));
        }));
    }

    /// Tells `error` and its causes: the log first, then stderr.
    pub(crate) fn fatal(&self, error: &anyhow::Error) {
        let sentence = sentence(error.as_ref());
        if let Some((path, line)) = &self.log {
            let text = line.text(&sentence, SystemTime::now());
            // A log that can't be written leaves stderr, and nobody to tell about it.
            let _ = append(path, &text);
        }
        // One write, so that lines of several runtimes on one stderr don't mix. Not
        // `eprintln!`: it panics where stderr is read-only.
        let _ = io::stderr().write_all(format!("{sentence}\n").as_bytes());
    }
}

/// crun(1) `--log`: `PATH` or `file:PATH`; `journald:ID` and `syslog:ID` aren't files, and
/// another word before a colon is an error to crun.
fn crun_file(log: &Path) -> Option<&Path> {
    let bytes = log.as_os_str().as_bytes();
    let path = match bytes.strip_prefix(b"file:") {
        Some(path) => path,
        None if bytes.contains(&b':') => return None,
        None => bytes,
    };
    (!path.is_empty()).then(|| Path::new(OsStr::from_bytes(path)))
}

/// One write(2) to a file opened for appending: the shim may read while we write.
fn append(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o644)
        .open(path)?
        .write_all(text.as_bytes())
}

impl LogLineFormat {
    fn text(self, sentence: &str, now: SystemTime) -> String {
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
    fn the_log_is_the_one_that_the_delegate_would_write() {
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
            let report = ErrorReporter::new(kind, &globals(log, LogFormat::Json), bundle);
            let path = report.log.as_ref().map(|(path, _)| path.to_str().unwrap());
            assert_eq!(path, expected, "{kind:?} --log {log}");
        }
        assert_eq!(
            ErrorReporter::new(Runc, &GlobalFlags::default(), None).log,
            None
        );
    }

    #[test]
    fn a_json_line_is_what_go_runc_parses() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        assert_eq!(
            LogLineFormat::Json.text("no \"x\" in C:\\ é", now),
            "{\"level\":\"error\",\"msg\":\"no \\\"x\\\" in C:\\\\ é\",\"time\":\"2026-09-21T14:13:20Z\"}\n"
        );
    }

    #[test]
    fn a_text_line_is_logrus_for_runc_and_bare_for_crun() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(
            LogLineFormat::Logrus.text("no \"x\" in C:\\", now),
            "time=\"1970-01-01T00:00:00Z\" level=error msg=\"no \\\"x\\\" in C:\\\\\"\n"
        );
        assert_eq!(LogLineFormat::Plain.text("no \"x\"", now), "no \"x\"\n");
        for (kind, line) in [
            (DelegateKind::Runc, LogLineFormat::Logrus),
            (DelegateKind::Crun, LogLineFormat::Plain),
        ] {
            let report = ErrorReporter::new(kind, &globals("/l", LogFormat::Text), None);
            assert_eq!(report.log, Some(("/l".into(), line)));
        }
    }

    #[test]
    fn the_log_gets_one_line_after_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.json");
        fs::write(&log, "{\"level\":\"info\"}\n").unwrap();
        let globals = globals(log.to_str().unwrap(), LogFormat::Json);
        let error = Err::<(), _>(io::Error::from_raw_os_error(13))
            .context("a\nb")
            .unwrap_err();
        ErrorReporter::new(DelegateKind::Runc, &globals, None).fatal(&error);
        let text = fs::read_to_string(&log).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        let line: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(line["level"], "error");
        assert_eq!(line["msg"], "a b: Permission denied (os error 13)");
        humantime::parse_rfc3339(line["time"].as_str().unwrap()).unwrap();
    }

    #[test]
    fn a_new_log_is_readable_and_an_impossible_one_is_no_panic() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let error = anyhow!("x");
        ErrorReporter::new(
            DelegateKind::Crun,
            &globals("log", LogFormat::Text),
            Some(dir.path()),
        )
        .fatal(&error);
        assert_eq!(fs::read_to_string(&log).unwrap(), "x\n");
        assert_eq!(fs::metadata(&log).unwrap().mode() & 0o400, 0o400);
        let nowhere = dir.path().join("no/such/dir");
        let nowhere = globals(nowhere.to_str().unwrap(), LogFormat::Json);
        ErrorReporter::new(DelegateKind::Runc, &nowhere, None).fatal(&error);
    }

    proptest! {
        #[test]
        fn any_message_is_one_line_that_parses(parts in prop::collection::vec(any::<String>(), 1..4)) {
            let mut error = anyhow!(parts[0].clone());
            for part in &parts[1..] {
                error = error.context(part.clone());
            }
            let sentence = sentence(error.as_ref());
            prop_assert!(!sentence.contains(char::is_control));
            let line = LogLineFormat::Json.text(&sentence, SystemTime::now());
            prop_assert_eq!(line.matches('\n').count(), 1);
            let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(parsed["msg"].as_str(), Some(sentence.as_str()));
            prop_assert_eq!(LogLineFormat::Logrus.text(&sentence, SystemTime::now()).matches('\n').count(), 1);
        }
    }
}

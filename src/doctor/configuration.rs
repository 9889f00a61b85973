//! Checks the configuration: which file applies, and whether its log can be written.

use std::ffi::OsString;

use crust_state::check::Finding;
use crust_state::config::ConfigError;
use crust_state::{Config, logging};

const CHECK: &str = "configuration";

/// Reports which configuration applies. `argv0` selects the candidate files.
pub(super) fn check(config: &Result<Config, ConfigError>, argv0: Option<&OsString>) -> Finding {
    match config {
        Err(error) => Finding::from_error(CHECK, error)
            .or_fix("correct the file; until then containers can be stopped, but not started"),
        Ok(config) => Finding::pass(CHECK, source(config, argv0)),
    }
}

fn source(config: &Config, argv0: Option<&OsString>) -> String {
    if let Some(file) = &config.source {
        return file.display().to_string();
    }
    let files = Config::candidate_files(argv0).map(|file| file.display().to_string());
    let files: Vec<String> = files.collect();
    format!("the defaults: there is no {}", files.join(", nor "))
}

const LOG: &str = "log";

pub(super) fn check_log(config: &Config) -> Finding {
    let Some(path) = &config.log else {
        return Finding::pass(LOG, "none; errors are only reported to the caller");
    };
    match logging::check(path) {
        Ok(()) => Finding::pass(LOG, path.display().to_string()),
        Err(error) => {
            let finding = Finding::from_error(LOG, &error).at_most_warning();
            Finding {
                found: format!("nothing is logged: {}", finding.found),
                ..finding
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crust_state::trust::TrustError;

    use super::*;

    #[test]
    fn the_finding_names_the_file_that_applies() {
        let argv0 = OsString::from("/usr/bin/runcrust-crun");
        let line = |config| check(&config, Some(&argv0)).to_string();
        let defaults = "pass  configuration: the defaults: there is no \
                        /etc/runcrust/runcrust-crun.toml, nor /etc/runcrust/config.toml";
        assert_eq!(line(Ok(Config::default())), defaults);
        let config = Config {
            source: Some("/etc/runcrust/config.toml".into()),
            ..Config::default()
        };
        let file = "pass  configuration: /etc/runcrust/config.toml";
        assert_eq!(line(Ok(config)), file);
        let flaw = TrustError::Untrusted {
            path: "/etc/runcrust".into(),
            reason: "can be written by others than root",
        };
        let line = line(Err(ConfigError::Untrusted(flaw)));
        let expected =
            "FAIL  configuration: /etc/runcrust can be written by others than root; hint: ";
        assert!(line.starts_with(expected), "{line}");
        assert!(line.contains("(chown root:root, chmod go-w)"), "{line}");
    }
}

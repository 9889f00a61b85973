//! Checks what is wrong with this node, without changing anything. Each check reads something, and judges it in a
//! function of its own. One that hangs has an end: each has a thread, which is waited for with a limit.

mod cgroups;
mod configuration;
mod crust_ops;
mod handler;
mod kernel;
mod kubelet;
mod leftovers;
mod programs;
mod propagation;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crust_state::Config;
use crust_state::check::{self, Finding};
use crust_state::config::ConfigError;
use crust_volume::host_features;

/// Makes all checks; without a readable configuration only those that need none. `argv0` is the name that this program
/// was called by, which selects the configuration.
pub(crate) fn examine(
    config: Result<Config, ConfigError>,
    argv0: Option<OsString>,
) -> Vec<Finding> {
    let mut checks = vec![
        Check::new("kernel", || vec![kernel::check_version()]),
        Check::new("mount API", || vec![kernel::check_mount_api()]),
        Check::new("user", || vec![check::root_user()]),
        Check::new("capabilities", || vec![host_features::check_capabilities()]),
    ];
    let told = configuration::check(&config, argv0.as_ref());
    checks.push(Check::new("configuration", || vec![told]));
    match config {
        Ok(config) => checks.extend(configured(&Arc::new(config))),
        // Its delegate is enough for all but a create.
        Err(_) => checks.push(Check::new("delegate", move || {
            vec![programs::check_only(argv0.as_ref())]
        })),
    }
    checks.push(Check::new("handler", handler::check));
    checks.push(Check::new("crust_ops", || vec![crust_ops::check()]));
    answers(checks)
}

/// Returns the checks of what the configuration names.
fn configured(config: &Arc<Config>) -> Vec<Check> {
    let of = |what, look: fn(&Config) -> Vec<Finding>| {
        let config = Arc::clone(config);
        Check::new(what, move || look(&config))
    };
    vec![
        of("file systems", |config| {
            vec![kernel::check_file_systems(config)]
        }),
        of("delegate", programs::check),
        of("hook", |config| vec![programs::check_hook(config)]),
        of("crust directory", |config| {
            vec![check::directory("crust directory", &config.crust_root)]
        }),
        of("state directory", |config| {
            vec![check::directory("state directory", &config.state_dir)]
        }),
        of("leftovers", |config| vec![leftovers::check(config)]),
        of("log", |config| vec![configuration::check_log(config)]),
        of("kubelet's directories", |config| {
            vec![kubelet::check(config)]
        }),
        of("propagation", |config| vec![propagation::check(config)]),
    ]
}

/// The time limit of all checks, which run at the same time.
const TIMEOUT: Duration = Duration::from_secs(8);

/// A check that is running.
struct Check {
    what: &'static str,
    findings: Receiver<Vec<Finding>>,
}

impl Check {
    /// Starts a check.
    fn new(what: &'static str, look: impl FnOnce() -> Vec<Finding> + Send + 'static) -> Self {
        let (tell, findings) = channel();
        // A thread that can't be started has no findings, as one that has panicked.
        let _ = thread::Builder::new().spawn(move || {
            // The receiver may have waited no longer.
            let _ = tell.send(look());
        });
        Self { what, findings }
    }
}

/// Returns the findings, in the order of the checks.
fn answers(checks: Vec<Check>) -> Vec<Finding> {
    answers_by(Instant::now() + TIMEOUT, checks)
}

fn answers_by(end: Instant, checks: Vec<Check>) -> Vec<Finding> {
    let answers = checks.into_iter().map(|check| {
        let left = end.saturating_duration_since(Instant::now());
        check.findings.recv_timeout(left).unwrap_or_else(|_| {
            vec![Finding::fail(
                check.what,
                format!("there was no answer in {} seconds", TIMEOUT.as_secs()),
                "a file system or a device that it looks at may hang: `ps` shows who waits, in \
                 state D",
            )]
        })
    });
    answers.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_told_and_holds_nothing_up() {
        let (hold, endless) = channel::<()>();
        let checks = vec![
            Check::new("hangs", move || {
                let _ = endless.recv();
                Vec::new()
            }),
            Check::new("fine", || vec![Finding::pass("fine", "all")]),
            Check::new("panics", || panic!("on purpose")),
        ];
        // The others have told before it is asked.
        while checks[1].findings.try_recv().is_err() {
            thread::yield_now();
        }
        let findings = answers_by(Instant::now(), checks);
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines[0].starts_with("FAIL  hangs: there was no answer"));
        drop(hold);
    }
}

//! Checks this node for problems, without changing anything. Each check reads some state of the node, and evaluates it
//! in a separate function. Each check has its own thread, and a check that hangs is reported after a timeout.

mod cgroups;
mod configuration;
mod crust_ops;
mod handler;
mod kernel;
mod kubelet;
mod leftovers;
mod nfs;
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

/// Runs all checks. Without a valid configuration it runs only those that need none. `argv0` is the name that this
/// program was called by, which selects the configuration. Blocks until all checks are done, or until the timeout.
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
    let finding = configuration::check(&config, argv0.as_ref());
    checks.push(Check::new("configuration", || vec![finding]));
    match config {
        Ok(config) => checks.extend(start_configured_checks(&Arc::new(config))),
        // Calls other than a create only need `delegate` and `delegate_kind` of the configuration.
        Err(_) => checks.push(Check::new("delegate", move || {
            vec![programs::check_only(argv0.as_ref())]
        })),
    }
    checks.push(Check::new("handler", handler::check));
    checks.push(Check::new("crust_ops", || vec![crust_ops::check()]));
    collect_findings(Instant::now() + TIMEOUT, checks)
}

/// Starts the checks that need the configuration.
fn start_configured_checks(config: &Arc<Config>) -> Vec<Check> {
    let start = |name, run: fn(&Config) -> Vec<Finding>| {
        let config = Arc::clone(config);
        Check::new(name, move || run(&config))
    };
    vec![
        start("file systems", |config| {
            vec![kernel::check_file_systems(config)]
        }),
        start("NFS client", |config| vec![nfs::check(config)]),
        start("delegate", programs::check),
        start("hook", |config| vec![programs::check_hook(config)]),
        start("crust directory", |config| {
            vec![check::directory("crust directory", &config.crust_root)]
        }),
        start("state directory", |config| {
            vec![check::directory("state directory", &config.state_dir)]
        }),
        start("leftovers", |config| vec![leftovers::check(config)]),
        start("log", |config| vec![configuration::check_log(config)]),
        start("kubelet's directories", |config| {
            vec![kubelet::check(config)]
        }),
        start("propagation", |config| vec![propagation::check(config)]),
    ]
}

/// The timeout for all checks together. They run at the same time.
const TIMEOUT: Duration = Duration::from_secs(8);

/// A running check.
struct Check {
    name: &'static str,
    findings: Receiver<Vec<Finding>>,
}

impl Check {
    /// Starts a check in a new thread. If the thread can't be started, or panics, the check fails without findings.
    fn new(name: &'static str, run: impl FnOnce() -> Vec<Finding> + Send + 'static) -> Self {
        let (sender, findings) = channel();
        let _ = thread::Builder::new().spawn(move || {
            // Sending fails if the timeout has passed, since the receiver is gone.
            let _ = sender.send(run());
        });
        Self { name, findings }
    }
}

/// Waits for the findings until `deadline`, and returns them in the order of the checks.
fn collect_findings(deadline: Instant, checks: Vec<Check>) -> Vec<Finding> {
    let findings = checks.into_iter().map(|check| {
        let left = deadline.saturating_duration_since(Instant::now());
        check.findings.recv_timeout(left).unwrap_or_else(|_| {
            vec![Finding::fail(
                check.name,
                format!("timeout: the check wasn't done after {} seconds", TIMEOUT.as_secs()),
                "a file system or a device that the check reads may hang; look for processes in state D with `ps`",
            )]
        })
    });
    findings.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_hangs_is_reported_and_delays_no_other() {
        let (unblock, blocked) = channel::<()>();
        let checks = vec![
            Check::new("hangs", move || {
                let _ = blocked.recv();
                Vec::new()
            }),
            Check::new("fine", || vec![Finding::pass("fine", "all")]),
            Check::new("panics", || panic!("on purpose")),
        ];
        // Wait until the other check is done.
        while checks[1].findings.try_recv().is_err() {
            thread::yield_now();
        }
        let findings = collect_findings(Instant::now(), checks);
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines[0].starts_with("FAIL  hangs: timeout: "));
        drop(unblock);
    }
}

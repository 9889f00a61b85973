//! Checks for stale state: what `gc` would remove, and what it would keep because it is unknown whether it is in use.

use std::path::Path;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::check::Finding;
use crust_state::{Config, CrustDirectory, StateDirectory};
use crust_volume::{Context, ReconcileMode};

use crate::programs::SELF_EXE;

const CHECK: &str = "leftovers";

const RECONCILE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn check(config: &Config) -> Finding {
    let state = match StateDirectory::open_lazily(&config.state_dir) {
        Ok(state) => state,
        // Another check fails if the state directory can't be used.
        Err(error) => return Finding::from_error(CHECK, &error).at_most_warning(),
    };
    let context = Context {
        config,
        crust: &CrustDirectory::new(config),
        state: &state,
        deadline: Deadline::after(RECONCILE_TIMEOUT),
        loop_devices: &LoopDeviceCache::default(),
    };
    let report = crust_volume::reconcile(&context, ReconcileMode::DryRun, Path::new(SELF_EXE));
    judge(
        report.removed.len(),
        report.left.len() + report.failed.len(),
    )
}

fn judge(stale: usize, unknown: usize) -> Finding {
    if (stale, unknown) == (0, 0) {
        return Finding::pass(CHECK, "none");
    }
    Finding::warn(
        CHECK,
        format!("gc would remove {stale} stale items and keep {unknown} whose use is unknown"),
        "list them and the reasons with `runcrust crust gc --dry-run`; crust_ops removes stale state every few minutes",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_and_unknown_state_is_counted() {
        assert_eq!(judge(0, 0).to_string(), "pass  leftovers: none");
        for (stale, unknown) in [(3, 0), (0, 1)] {
            let line = judge(stale, unknown).to_string();
            let expected =
                format!("warn  leftovers: gc would remove {stale} stale items and keep {unknown} ");
            assert!(line.starts_with(&expected), "{line}");
        }
    }
}

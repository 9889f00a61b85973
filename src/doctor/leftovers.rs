//! Checks for stale state: what `gc` would remove, and what it would leave because its use is unknown.

use std::path::Path;
use std::time::Duration;

use crust_blockfs::Deadline;
use crust_blockfs::device::LoopDeviceCache;
use crust_state::check::Finding;
use crust_state::{Config, CrustDirectory, StateDirectory};
use crust_volume::{Context, ReconcileMode};

use crate::programs::SELF_EXE;

const WHAT: &str = "leftovers";

/// For what takes longer nobody waits.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn check(config: &Config) -> Finding {
    let state = match StateDirectory::open_lazily(&config.state_dir) {
        Ok(state) => state,
        // That it can't be used is another check's.
        Err(error) => return Finding::from_error(WHAT, &error).at_most_warning(),
    };
    let context = Context {
        config,
        crust: &CrustDirectory::new(config),
        state: &state,
        deadline: Deadline::after(PATIENCE),
        loop_devices: &LoopDeviceCache::default(),
    };
    let report = crust_volume::reconcile(&context, ReconcileMode::DryRun, Path::new(SELF_EXE));
    judge(
        report.removed.len(),
        report.left.len() + report.failed.len(),
    )
}

fn judge(needless: usize, unsure: usize) -> Finding {
    if (needless, unsure) == (0, 0) {
        return Finding::pass(WHAT, "none");
    }
    Finding::warn(
        WHAT,
        format!("gc would remove {needless} and leave {unsure}"),
        "`runcrust crust gc --dry-run` tells what and why; crust_ops removes what nobody needs every few \
         minutes",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gc_would_do_is_counted() {
        assert_eq!(judge(0, 0).to_string(), "pass  leftovers: none");
        for (needless, unsure) in [(3, 0), (0, 1)] {
            let line = judge(needless, unsure).to_string();
            let expected =
                format!("warn  leftovers: gc would remove {needless} and leave {unsure}; ");
            assert!(line.starts_with(&expected), "{line}");
        }
    }
}

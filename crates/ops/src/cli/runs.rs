//! How many programs run, and that none does in the end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Who has been killed is gone by then, unless the kernel has him.
const PATIENCE: Duration = Duration::from_secs(3);

/// Those that run.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    ending: Arc<watch::Sender<bool>>,
}

/// One of them.
pub(super) struct Run(watch::Receiver<bool>);

impl Default for Runs {
    fn default() -> Self {
        Self {
            ending: Arc::new(watch::Sender::new(false)),
        }
    }
}

impl Runs {
    /// A place for one more; `None` once there is none.
    pub(super) fn begin(&self) -> Option<Run> {
        let run = Run(self.ending.subscribe());
        // Whoever has subscribed before the end is told of it.
        let is_ending = *run.0.borrow();
        (!is_ending).then_some(run)
    }

    /// Ends all of them, and lets none begin.
    pub(crate) async fn end(&self) {
        self.ending.send_replace(true);
        let _ = tokio::time::timeout(PATIENCE, self.ending.closed()).await;
    }
}

impl Run {
    /// Returns when it is to end.
    pub(super) async fn ending(&mut self) {
        // Whoever would say so is gone.
        let _ = self.0.wait_for(|ending| *ending).await;
    }
}

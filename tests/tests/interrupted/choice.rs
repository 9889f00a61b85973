//! How much of what could be killed is killed: all of it in `make torture`, in `make test` a sample
//! that is another one every day.

use runcrust_tests::random::seed;
use runcrust_tests::steps::Step;

/// So many steps of a row, or moments, are a sample.
const SAMPLE: usize = 3;

/// So many moments are all.
const MOMENTS: usize = 40;

/// What is taken.
pub(crate) enum Choice {
    All,
    /// One step, to see it again.
    One(Step),
    /// What this number stands for.
    Sample(u64),
}

impl Choice {
    /// As `RUNCRUST_TORTURE`, `RUNCRUST_TORTURE_STEP` and `RUNCRUST_TORTURE_SEED` say.
    pub(crate) fn made() -> Self {
        if let Some(step) = variable("RUNCRUST_TORTURE_STEP") {
            return Self::One(step.parse().expect("RUNCRUST_TORTURE_STEP"));
        }
        if variable("RUNCRUST_TORTURE").is_some() {
            return Self::All;
        }
        Self::Sample(seed())
    }

    /// Of a row's steps. With as many seeds, one after the other, as a sample is smaller than all,
    /// each is taken.
    pub(crate) fn of(&self, steps: Vec<Step>) -> Vec<Step> {
        match self {
            Self::All => steps,
            Self::One(step) => vec![step.clone()],
            Self::Sample(seed) => {
                let stride = steps.len().div_ceil(SAMPLE).max(1);
                let first = usize::try_from(seed % stride as u64).expect("below a usize");
                let steps = steps.into_iter().skip(first);
                steps.step_by(stride).collect()
            }
        }
    }

    /// How many moments.
    pub(crate) fn moments(&self) -> usize {
        match self {
            Self::All => MOMENTS,
            _ => SAMPLE,
        }
    }
}

/// One that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

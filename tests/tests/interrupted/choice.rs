//! The steps and moments after which programs are killed: all of them in `make torture`, and in `make test` a sample
//! that changes every day.

use runcrust_tests::random::seed;
use runcrust_tests::steps::Step;

/// The number of steps of a row, or of moments, in a sample.
const SAMPLE: usize = 3;

/// The number of moments in `make torture`.
const MOMENTS: usize = 40;

/// The selected steps or moments.
pub(crate) enum Choice {
    All,
    /// One step, to reproduce a failure.
    One(Step),
    /// A sample that depends on this seed.
    Sample(u64),
}

impl Choice {
    /// Reads the choice from `RUNCRUST_TORTURE`, `RUNCRUST_TORTURE_STEP` and `RUNCRUST_TORTURE_SEED`.
    pub(crate) fn from_env() -> Self {
        if let Some(step) = variable("RUNCRUST_TORTURE_STEP") {
            return Self::One(step.parse().expect("RUNCRUST_TORTURE_STEP"));
        }
        if variable("RUNCRUST_TORTURE").is_some() {
            return Self::All;
        }
        Self::Sample(seed())
    }

    /// Selects from a row's steps. Samples of consecutive seeds together cover all steps.
    pub(crate) fn select(&self, steps: Vec<Step>) -> Vec<Step> {
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

    /// Returns the number of moments.
    pub(crate) fn moments(&self) -> usize {
        match self {
            Self::All => MOMENTS,
            _ => SAMPLE,
        }
    }
}

/// Returns a variable of the environment, or `None` if it is unset or empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

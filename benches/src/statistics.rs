//! Numbers of many numbers.

/// Of the times in a round, the quantile that is taken to be retry_lost_race: whatever else the machine does only
/// ever makes one longer.
pub(crate) const UNDISTURBED: f64 = 0.1;

/// The middle of what was measured, and how far half of it lies apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// The first quartile.
    pub(crate) low: f64,
    /// The third.
    pub(crate) high: f64,
}

impl Summary {
    /// Of at least one number.
    pub(crate) fn of(samples: &[f64]) -> Self {
        Self {
            median: median(samples),
            low: quantile(samples, 0.25),
            high: quantile(samples, 0.75),
        }
    }
}

/// The number in the middle of at least one.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// The number that a share of at least one isn't above; between two, in proportion.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1).expect("something was measured");
    let place = share * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the place is between 0 and the last one's"
    )]
    let below = place.floor() as usize;
    let above = last.min(below + 1);
    sorted[below] + (sorted[above] - sorted[below]) * place.fract()
}

/// Of each round, how many times the second's number the first's is.
pub(crate) fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    paired(ours, theirs, |ours, theirs| ours / theirs)
}

/// Of each round, by how much the first's number is above the second's.
pub(crate) fn differences(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    paired(ours, theirs, |ours, theirs| ours - theirs)
}

fn paired(ours: &[f64], theirs: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    assert_eq!(ours.len(), theirs.len(), "each round has both");
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(ours, theirs)| of(*ours, *theirs)).collect()
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "of numbers that binary fractions are")]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_the_numbers_beside_them() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        let five = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(
            Summary::of(&five),
            Summary {
                median: 3.0,
                low: 2.0,
                high: 4.0
            }
        );
        assert_eq!(quantile(&five, 0.0), 1.0);
        assert_eq!(quantile(&five, 1.0), 5.0);
        assert_eq!(quantile(&five, 0.125), 1.5);
    }

    #[test]
    fn one_round_that_was_disturbed_moves_no_median() {
        let (ours, theirs) = ([2.0, 2.0, 900.0], [1.0, 1.0, 1.0]);
        assert_eq!(median(&ratios(&ours, &theirs)), 2.0);
        assert_eq!(median(&differences(&ours, &theirs)), 1.0);
    }

    #[test]
    fn a_machine_that_gets_slower_moves_no_ratio() {
        let (ours, theirs) = ([3.0, 6.0, 12.0], [2.0, 4.0, 8.0]);
        assert_eq!(ratios(&ours, &theirs), [1.5; 3]);
    }

    #[test]
    #[should_panic(expected = "each round has both")]
    fn rounds_of_one_alone_are_no_pairs() {
        let _ = ratios(&[1.0, 2.0], &[1.0]);
    }
}

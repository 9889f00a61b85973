//! Medians, quantiles, ratios and differences.

/// The quantile of the times in a round that counts as undisturbed, because other work on the machine can only make a
/// time longer.
pub(crate) const UNDISTURBED: f64 = 0.1;

/// The median and the quartiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// The first quartile.
    pub(crate) low: f64,
    /// The third quartile.
    pub(crate) high: f64,
}

impl Summary {
    /// Summarises at least one number.
    pub(crate) fn from_samples(samples: &[f64]) -> Self {
        Self {
            median: median(samples),
            low: quantile(samples, 0.25),
            high: quantile(samples, 0.75),
        }
    }
}

/// Returns the median of at least one number.
pub(crate) fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Returns the quantile of at least one number. Between two numbers it interpolates.
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

/// Returns the ratio of the numbers of each round.
pub(crate) fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    map_pairs(ours, theirs, |ours, theirs| ours / theirs)
}

/// Returns the difference of the numbers of each round.
pub(crate) fn differences(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    map_pairs(ours, theirs, |ours, theirs| ours - theirs)
}

fn map_pairs(ours: &[f64], theirs: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    assert_eq!(ours.len(), theirs.len(), "each round has both");
    let pairs = ours.iter().zip(theirs);
    pairs.map(|(ours, theirs)| of(*ours, *theirs)).collect()
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the numbers are exact binary fractions")]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        let five = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(
            Summary::from_samples(&five),
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
    fn one_disturbed_round_does_not_change_the_median() {
        let (ours, theirs) = ([2.0, 2.0, 900.0], [1.0, 1.0, 1.0]);
        assert_eq!(median(&ratios(&ours, &theirs)), 2.0);
        assert_eq!(median(&differences(&ours, &theirs)), 1.0);
    }

    #[test]
    fn a_machine_that_gets_slower_does_not_change_the_ratios() {
        let (ours, theirs) = ([3.0, 6.0, 12.0], [2.0, 4.0, 8.0]);
        assert_eq!(ratios(&ours, &theirs), [1.5; 3]);
    }

    #[test]
    #[should_panic(expected = "each round has both")]
    fn series_of_different_length_are_refused() {
        let _ = ratios(&[1.0, 2.0], &[1.0]);
    }
}

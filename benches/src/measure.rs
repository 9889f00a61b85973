//! Results of a row, and their targets.

use std::fmt;

use crate::statistics::Summary;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Measure {
    /// The text of the column `case`.
    pub(crate) case: String,
    /// One number for each round, or a single count.
    pub(crate) samples: Vec<f64>,
    pub(crate) unit: Unit,
    /// `None` for a line that is only shown for comparison.
    pub(crate) target: Option<Target>,
}

impl Measure {
    /// Makes a line without a target.
    pub(crate) fn new(case: impl Into<String>, unit: Unit, samples: Vec<f64>) -> Self {
        Self {
            case: case.into(),
            samples,
            unit,
            target: None,
        }
    }

    /// Makes a line with a target.
    pub(crate) fn with_target(
        case: impl Into<String>,
        unit: Unit,
        samples: Vec<f64>,
        target: Target,
    ) -> Self {
        Self {
            target: Some(target),
            ..Self::new(case, unit, samples)
        }
    }

    /// Returns the median and the quartiles.
    pub(crate) fn summary(&self) -> Summary {
        Summary::from_samples(&self.samples)
    }

    /// Returns whether the median meets the target; `None` without a target.
    pub(crate) fn is_met(&self) -> Option<bool> {
        let target = self.target.as_ref()?;
        Some(target.has(self.summary().median))
    }
}

/// The unit of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A ratio to the comparison.
    Ratio,
    /// A time in milliseconds.
    Time,
    /// The difference to the comparison in milliseconds.
    Added,
    /// A size in megabytes of 1,000,000 bytes.
    Size,
    /// A number of calls or lines.
    Count,
    /// A number for each second.
    Rate,
}

/// A number with its unit.
pub(crate) struct Quantity(pub(crate) f64, pub(crate) Unit);

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        match self.1 {
            Unit::Ratio => write!(f, "×{number:.3}"),
            Unit::Time => write!(f, "{number:.3} ms"),
            Unit::Added => write!(f, "{number:+.3} ms"),
            Unit::Size => write!(f, "{number:.2} MB"),
            Unit::Count => write!(f, "{number:.0}"),
            Unit::Rate => write!(f, "{number:.0}/s"),
        }
    }
}

/// The range of a median that is aimed at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
    Between(f64, f64),
}

impl Target {
    fn has(self, number: f64) -> bool {
        match self {
            Self::AtMost(most) => number <= most,
            Self::AtLeast(least) => number >= least,
            Self::Between(least, most) => (least..=most).contains(&number),
        }
    }

    /// Formats the range for the table.
    pub(crate) fn format(self, unit: Unit) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", Quantity(most, unit)),
            Self::AtLeast(least) => format!("≥ {}", Quantity(least, unit)),
            Self::Between(least, most) => {
                format!("{} to {}", Quantity(least, unit), Quantity(most, unit))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_compared_with_the_target() {
        let measure = |target| Measure {
            target,
            ..Measure::new("a case", Unit::Ratio, vec![1.4, 1.5, 9.0])
        };
        for (target, met) in [
            (None, None),
            (Some(Target::AtMost(1.5)), Some(true)),
            (Some(Target::AtMost(1.4)), Some(false)),
            (Some(Target::AtLeast(1.5)), Some(true)),
            (Some(Target::AtLeast(1.6)), Some(false)),
            (Some(Target::Between(1.4, 1.6)), Some(true)),
            (Some(Target::Between(0.9, 1.1)), Some(false)),
        ] {
            assert_eq!(measure(target).is_met(), met, "{target:?}");
        }
    }

    #[test]
    fn numbers_say_what_they_are_of() {
        assert_eq!(Quantity(1.5, Unit::Ratio).to_string(), "×1.500");
        assert_eq!(Quantity(0.05, Unit::Added).to_string(), "+0.050 ms");
        assert_eq!(Quantity(-0.05, Unit::Added).to_string(), "-0.050 ms");
        assert_eq!(Target::AtMost(0.8).format(Unit::Size), "≤ 0.80 MB");
        let within = Target::Between(0.98, 1.02).format(Unit::Ratio);
        assert_eq!(within, "×0.980 to ×1.020");
    }
}

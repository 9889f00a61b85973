//! What a row came to, and what it is to reach.

use std::fmt;

use crate::statistics::Summary;

/// One line of the table.
#[derive(Debug, Clone)]
pub(crate) struct Measure {
    /// What was measured.
    pub(crate) case: String,
    /// Of each round a number, or one that was counted once.
    pub(crate) samples: Vec<f64>,
    pub(crate) unit: Unit,
    /// `None`: it is told, because another line is read with it.
    pub(crate) reach: Option<Reach>,
}

impl Measure {
    /// A line without a reach.
    pub(crate) fn told(case: impl Into<String>, unit: Unit, samples: Vec<f64>) -> Self {
        Self {
            case: case.into(),
            samples,
            unit,
            reach: None,
        }
    }

    /// A line with one.
    pub(crate) fn to_reach(
        case: impl Into<String>,
        unit: Unit,
        samples: Vec<f64>,
        reach: Reach,
    ) -> Self {
        Self {
            reach: Some(reach),
            ..Self::told(case, unit, samples)
        }
    }

    /// The middle of it.
    pub(crate) fn summary(&self) -> Summary {
        Summary::of(&self.samples)
    }

    /// Whether its middle is where it should be.
    pub(crate) fn is_reached(&self) -> Option<bool> {
        let reach = self.reach.as_ref()?;
        Some(reach.has(self.summary().median))
    }
}

/// What its numbers are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// How many times the other's.
    Ratio,
    /// Milliseconds.
    Time,
    /// Milliseconds more than the other's.
    Added,
    /// Megabytes, of 1,000,000 bytes.
    Size,
    /// Of calls, lines.
    Count,
    /// A second.
    Rate,
}

/// A number in a unit.
pub(crate) struct Told(pub(crate) f64, pub(crate) Unit);

impl fmt::Display for Told {
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

/// Where a median is to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Reach {
    AtMost(f64),
    AtLeast(f64),
    Between(f64, f64),
}

impl Reach {
    fn has(self, number: f64) -> bool {
        match self {
            Self::AtMost(most) => number <= most,
            Self::AtLeast(least) => number >= least,
            Self::Between(least, most) => (least..=most).contains(&number),
        }
    }

    /// In the words of the table.
    pub(crate) fn told(self, unit: Unit) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {}", Told(most, unit)),
            Self::AtLeast(least) => format!("≥ {}", Told(least, unit)),
            Self::Between(least, most) => {
                format!("{} to {}", Told(least, unit), Told(most, unit))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_what_reaches() {
        let measure = |reach| Measure {
            reach,
            ..Measure::told("a case", Unit::Ratio, vec![1.4, 1.5, 9.0])
        };
        for (reach, reached) in [
            (None, None),
            (Some(Reach::AtMost(1.5)), Some(true)),
            (Some(Reach::AtMost(1.4)), Some(false)),
            (Some(Reach::AtLeast(1.5)), Some(true)),
            (Some(Reach::AtLeast(1.6)), Some(false)),
            (Some(Reach::Between(1.4, 1.6)), Some(true)),
            (Some(Reach::Between(0.9, 1.1)), Some(false)),
        ] {
            assert_eq!(measure(reach).is_reached(), reached, "{reach:?}");
        }
    }

    #[test]
    fn numbers_say_what_they_are_of() {
        assert_eq!(Told(1.5, Unit::Ratio).to_string(), "×1.500");
        assert_eq!(Told(0.05, Unit::Added).to_string(), "+0.050 ms");
        assert_eq!(Told(-0.05, Unit::Added).to_string(), "-0.050 ms");
        assert_eq!(Reach::AtMost(0.8).told(Unit::Size), "≤ 0.80 MB");
        let within = Reach::Between(0.98, 1.02).told(Unit::Ratio);
        assert_eq!(within, "×0.980 to ×1.020");
    }
}

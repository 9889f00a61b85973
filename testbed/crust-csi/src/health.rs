//! Problems of a volume, or of the storage of all volumes. `VolumeHealth` of CSI 1.13, and `VolumeCondition`, which
//! 1.13 removed, report the same problems.

use crust_proto::csi::v1::volume_health::VolumeHealthEntry;
use crust_proto::csi::v1::{VolumeCondition, VolumeHealth, VolumeHealthErrorType};

/// A problem of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: VolumeHealthErrorType,
    /// A word in CamelCase, which must not change between versions.
    pub(crate) reason: &'static str,
    /// A sentence with a hint.
    pub(crate) message: String,
}

/// The problems of a volume. As CSI requires, no two have the same status and reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health(Vec<Problem>);

impl Health {
    /// Adds a problem, unless there is one with the same status and reason.
    pub(crate) fn add(&mut self, problem: Problem) {
        let key = |it: &Problem| (it.status, it.reason);
        if !self.0.iter().any(|it| key(it) == key(&problem)) {
            self.0.push(problem);
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|problem| self.add(problem));
    }

    pub(crate) const fn is_healthy(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the `VolumeCondition` of versions before CSI 1.13. `healthy_message` is the message if there is no
    /// problem.
    pub(crate) fn to_volume_condition(&self, healthy_message: &str) -> VolumeCondition {
        let messages: Vec<&str> = self.0.iter().map(|it| it.message.as_str()).collect();
        VolumeCondition {
            abnormal: !self.is_healthy(),
            message: if self.is_healthy() {
                healthy_message.to_owned()
            } else {
                messages.join("; ")
            },
        }
    }

    /// Converts to the `VolumeHealth` of CSI 1.13.
    pub(crate) fn into_volume_health(self, id: &str) -> VolumeHealth {
        let entries = self.0.into_iter().map(|problem| VolumeHealthEntry {
            status: problem.status.into(),
            reason: problem.reason.to_owned(),
            message: problem.message,
        });
        VolumeHealth {
            volume_id: id.to_owned(),
            health_statuses: entries.collect(),
        }
    }
}

impl From<Problem> for Health {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: VolumeHealthErrorType, reason: &'static str, message: &str) -> Problem {
        Problem {
            status,
            reason,
            message: message.to_owned(),
        }
    }

    #[test]
    fn both_forms_report_every_problem_once() {
        use VolumeHealthErrorType::{DataLoss, Degraded};
        let mut health = Health::default();
        assert_eq!(
            health.to_volume_condition("fine"),
            VolumeCondition {
                abnormal: false,
                message: "fine".to_owned()
            }
        );
        health.add(problem(Degraded, "A", "first"));
        health.extend(problem(Degraded, "A", "again").into());
        health.extend(problem(DataLoss, "A", "worse").into());
        assert_eq!(
            health.to_volume_condition("fine"),
            VolumeCondition {
                abnormal: true,
                message: "first; worse".to_owned()
            }
        );
        let health = health.into_volume_health("v");
        let problems = health
            .health_statuses
            .iter()
            .map(|it| (it.status(), it.reason.as_str(), it.message.as_str()));
        let expected = [(Degraded, "A", "first"), (DataLoss, "A", "worse")];
        assert_eq!(problems.collect::<Vec<_>>(), expected);
    }
}

//! The usage and health of a volume, as a driver or a runtime reports them.

use crust_proto::csi::v1::{self as csi, NodeGetVolumeStatsResponse, VolumeHealth};
use crust_proto::runtime::v1alpha1::{self as runtime, RuntimeGetVolumeStatsResponse};

/// The usage and health of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    /// In bytes.
    pub(crate) bytes: Option<Space>,
    /// In files and directories.
    pub(crate) inodes: Option<Space>,
    /// How it fares.
    pub(crate) condition: Option<Condition>,
}

impl Stats {
    /// Returns the message of an abnormal condition.
    pub(crate) fn abnormal(&self) -> Option<&str> {
        let abnormal = self.condition.as_ref().filter(|it| it.abnormal);
        abnormal.map(|it| it.message.as_str())
    }
}

/// How full it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// All there is.
    pub(crate) total: i64,
    /// The amount that a user other than root can still use.
    pub(crate) available: i64,
    /// The amount in use.
    pub(crate) used: i64,
}

/// How it fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Something is wrong.
    pub(crate) abnormal: bool,
    /// The condition in a sentence.
    pub(crate) message: String,
}

/// CSI 1.13's form. A status that isn't known here is a problem as well.
impl From<VolumeHealth> for Condition {
    fn from(health: VolumeHealth) -> Self {
        let entries = health.health_statuses;
        let messages = entries.iter().map(|entry| match entry.message.as_str() {
            "" => entry.reason.clone(),
            message => message.to_owned(),
        });
        Self {
            message: messages.collect::<Vec<_>>().join("; "),
            abnormal: !entries.is_empty(),
        }
    }
}

/// The two interfaces have the same messages, each in its own package.
macro_rules! told_by {
    ($package:ident, $response:ident) => {
        impl From<$response> for Stats {
            fn from(response: $response) -> Self {
                use $package::volume_usage::Unit;
                let mut stats = Self::default();
                for usage in response.usage {
                    let space = Some(Space {
                        total: usage.total,
                        available: usage.available,
                        used: usage.used,
                    });
                    match usage.unit() {
                        Unit::Bytes => stats.bytes = space,
                        Unit::Inodes => stats.inodes = space,
                        Unit::Unknown => {}
                    }
                }
                stats.condition = response.volume_condition.map(|it| Condition {
                    abnormal: it.abnormal,
                    message: it.message,
                });
                stats
            }
        }
    };
}

told_by!(csi, NodeGetVolumeStatsResponse);
told_by!(runtime, RuntimeGetVolumeStatsResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_problem_is_abnormal_and_is_told() {
        use csi::volume_health::VolumeHealthEntry;
        let health = |entries: &[(i32, &str)]| {
            let entry = |(status, message): &(i32, &str)| VolumeHealthEntry {
                status: *status,
                reason: "Reason".to_owned(),
                message: (*message).to_owned(),
            };
            let health = VolumeHealth {
                volume_id: "v".to_owned(),
                health_statuses: entries.iter().map(entry).collect(),
            };
            let condition = Condition::from(health);
            (condition.abnormal, condition.message)
        };
        assert_eq!(health(&[]), (false, String::new()));
        assert_eq!(
            health(&[(1, "slow"), (77, "")]),
            (true, "slow; Reason".to_owned())
        );
    }

    #[test]
    fn what_is_counted_is_told_apart() {
        use csi::volume_usage::Unit;
        let usage = |unit: i32, total| csi::VolumeUsage {
            available: 1,
            total,
            used: 2,
            unit,
        };
        let stats = Stats::from(NodeGetVolumeStatsResponse {
            usage: vec![
                usage(Unit::Inodes.into(), 10),
                usage(Unit::Unknown.into(), 20),
                usage(77, 30),
                usage(Unit::Bytes.into(), 40),
            ],
            volume_condition: None,
            source: String::new(),
        });
        let space = |total| {
            Some(Space {
                total,
                available: 1,
                used: 2,
            })
        };
        let expected = Stats {
            bytes: space(40),
            inodes: space(10),
            condition: None,
        };
        assert_eq!(stats, expected);
    }
}

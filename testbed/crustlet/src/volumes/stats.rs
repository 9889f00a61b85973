//! The usage and health of a volume, as reported by its driver or a runtime.

use crust_proto::csi::v1::{self as csi, NodeGetVolumeStatsResponse, VolumeHealth};
use crust_proto::runtime::v1alpha1::{self as runtime, RuntimeGetVolumeStatsResponse};

/// The usage and health of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) bytes: Option<SpaceUsage>,
    pub(crate) inodes: Option<SpaceUsage>,
    pub(crate) condition: Option<VolumeCondition>,
}

impl Stats {
    /// Returns the message of an abnormal condition. `None` if the condition is normal or unknown.
    pub(crate) fn abnormal(&self) -> Option<&str> {
        let abnormal = self
            .condition
            .as_ref()
            .filter(|condition| condition.abnormal);
        abnormal.map(|condition| condition.message.as_str())
    }
}

/// The usage of a volume in one unit, as in CSI's `VolumeUsage`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpaceUsage {
    pub(crate) total: i64,
    /// The amount that users other than root can still use.
    pub(crate) available: i64,
    pub(crate) used: i64,
}

/// CSI's `VolumeCondition`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeCondition {
    pub(crate) abnormal: bool,
    pub(crate) message: String,
}

/// Converts CSI 1.13's health. Any status is a problem, even an unknown one.
impl From<VolumeHealth> for VolumeCondition {
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

/// Implements the conversion of a response. CSI and the runtime's interface have the same messages in two packages.
macro_rules! impl_from_response {
    ($package:ident, $response:ident) => {
        impl From<$response> for Stats {
            fn from(response: $response) -> Self {
                use $package::volume_usage::Unit;
                let mut stats = Self::default();
                for usage in response.usage {
                    let space = Some(SpaceUsage {
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
                stats.condition = response.volume_condition.map(|condition| VolumeCondition {
                    abnormal: condition.abnormal,
                    message: condition.message,
                });
                stats
            }
        }
    };
}

impl_from_response!(csi, NodeGetVolumeStatsResponse);
impl_from_response!(runtime, RuntimeGetVolumeStatsResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_health_status_is_abnormal() {
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
            let condition = VolumeCondition::from(health);
            (condition.abnormal, condition.message)
        };
        assert_eq!(health(&[]), (false, String::new()));
        assert_eq!(
            health(&[(1, "slow"), (77, "")]),
            (true, "slow; Reason".to_owned())
        );
    }

    #[test]
    fn units_are_distinguished() {
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
            Some(SpaceUsage {
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

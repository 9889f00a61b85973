//! When fsGroup is applied.

use std::fmt;
use std::str::FromStr;

/// When fsGroup is applied to a volume (`metadata.fsGroupChangePolicy`; the names are those of
/// `PodSecurityContext.fsGroupChangePolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsGroupChangePolicy {
    /// Every time the volume is mounted for a pod.
    #[default]
    Always,
    /// Only where the volume's root doesn't already have the group and the permissions.
    OnRootMismatch,
}

impl FsGroupChangePolicy {
    /// The policy of a volume with this group. Without a group a policy means nothing: kubelet sends one whenever
    /// the pod has one. It is then the default, so that the same volume is described in one way.
    #[must_use]
    pub fn with_group(self, group: Option<u32>) -> Self {
        group.map_or_else(Self::default, |_| self)
    }
}

/// A string that isn't an `fsGroupChangePolicy`.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} isn't an fsGroupChangePolicy (one of Always, OnRootMismatch)")]
pub struct NotAPolicy(String);

impl FsGroupChangePolicy {
    /// As Kubernetes writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::OnRootMismatch => "OnRootMismatch",
        }
    }
}

impl FromStr for FsGroupChangePolicy {
    type Err = NotAPolicy;

    fn from_str(text: &str) -> Result<Self, NotAPolicy> {
        [Self::Always, Self::OnRootMismatch]
            .into_iter()
            .find(|policy| policy.as_str() == text)
            .ok_or_else(|| NotAPolicy(text.to_owned()))
    }
}

impl fmt::Display for FsGroupChangePolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

//! The crust directory and the runtime's own records.

mod deadline;

pub use deadline::Deadline;

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

//! Problems of a volume, or of the storage of all volumes. `VolumeHealth` of CSI 1.13, and `VolumeCondition`, which
//! 1.13 removed, report the same problems.

use crust_proto::csi::v1::node_get_storage_health_response::StorageBackendHealth;
use crust_proto::csi::v1::volume_health::VolumeHealthEntry;
use crust_proto::csi::v1::{
    StorageHealthErrorType, VolumeCondition, VolumeHealth, VolumeHealthErrorType,
};
use crust_state::error_message;

use crate::driver::Driver;
use crate::images::ImageError;
use crate::refusal::Refusal;
use crate::store::Record;

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

impl Driver {
    /// Checks a volume's image for problems. Fails only if the directory of all images was replaced, which
    /// `NodeGetStorageHealth` reports.
    pub(crate) fn image_health(&self, id: &str, record: &Record) -> Result<Health, Refusal> {
        let problem = match self.images.size(id) {
            Ok(size) => self
                .describe_truncation(id, record, size)
                .map(|cut| Problem {
                    status: VolumeHealthErrorType::DataLoss,
                    reason: "ImageCut",
                    message: error_message(&Refusal::state(id, cut)),
                }),
            Err(error) => Some(image_problem(error)?),
        };
        Ok(problem.map(Health::from).unwrap_or_default())
    }

    /// Checks the data directory, which all volumes share, for problems.
    pub(crate) fn storage_health(&self) -> Vec<StorageBackendHealth> {
        use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
        let problem = |status: StorageHealthErrorType, reason: &str, message: String| {
            vec![StorageBackendHealth {
                status: status.into(),
                reason: reason.to_owned(),
                message,
                volume_capability: None,
            }]
        };
        if let Err(error) = self.images.check() {
            return problem(
                StorageUnreachable,
                "DataDirectoryReplaced",
                error_message(&error),
            );
        }
        match self.space() {
            Err(error) => problem(
                StorageUnreachable,
                "DataDirectoryUnreadable",
                error_message(&error),
            ),
            Ok(space) if space.is_read_only => problem(
                StorageDegraded,
                "DataDirectoryReadOnly",
                format!(
                    "{}: the file system is read-only; hint: check the kernel log for errors of the disk",
                    self.context.settings.data_dir.display()
                ),
            ),
            Ok(space) if space.reserved > space.bytes => problem(
                StorageDegraded,
                "RoomTaken",
                format!(
                    "{}: volumes have {} bytes in total, and there is space for {}: writes to a volume may fail; \
                     hint: free space, or delete volumes",
                    self.context.settings.data_dir.display(),
                    space.reserved,
                    space.bytes
                ),
            ),
            Ok(_) => Vec::new(),
        }
    }
}

/// Converts the error of one image to a problem of the volume. Other errors are returned unchanged.
fn image_problem(error: ImageError) -> Result<Problem, ImageError> {
    let reason = match error {
        ImageError::Missing(_) => "ImageMissing",
        ImageError::Call { .. } => "ImageUnreadable",
        ImageError::DirectoryReplaced(_) | ImageError::NoRecord(_) => return Err(error),
    };
    Ok(Problem {
        status: VolumeHealthErrorType::Inaccessible,
        reason,
        message: error_message(&error),
    })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    fn problem(status: VolumeHealthErrorType, reason: &'static str, message: &str) -> Problem {
        Problem {
            status,
            reason,
            message: message.to_owned(),
        }
    }

    #[test]
    fn an_unreadable_image_affects_its_volume_only() {
        let path = || PathBuf::from("/data/images/v.img");
        let unreadable = ImageError::Call {
            call: "lstat",
            path: path(),
            source: io::Error::from_raw_os_error(5),
        };
        for (error, reason) in [
            (ImageError::Missing(path()), Some("ImageMissing")),
            (unreadable, Some("ImageUnreadable")),
            (ImageError::DirectoryReplaced(path()), None),
        ] {
            let problem = image_problem(error).ok();
            assert_eq!(problem.as_ref().map(|it| it.reason), reason);
            let inaccessible = |it: &Problem| it.status == VolumeHealthErrorType::Inaccessible;
            assert!(problem.as_ref().is_none_or(inaccessible), "{problem:?}");
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

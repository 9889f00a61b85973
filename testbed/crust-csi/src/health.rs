//! Problems of a volume, or of the storage behind all volumes: as CSI 1.13 reports them, and as CSI did before.
//!
//! `VolumeCondition`, which 1.13 removed, and `VolumeHealth` are made of the same findings.

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
    /// How bad it is.
    pub(crate) status: VolumeHealthErrorType,
    /// A word in CamelCase that stays the same over versions.
    pub(crate) reason: &'static str,
    /// A sentence with a hint.
    pub(crate) message: String,
}

/// All known problems of a volume; no two have the same status and reason, as CSI wants it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health(Vec<Problem>);

impl Health {
    /// Adds a problem. Of two that have the same status and reason, the first is kept.
    pub(crate) fn add(&mut self, problem: Problem) {
        let key = |it: &Problem| (it.status, it.reason);
        if !self.0.iter().any(|it| key(it) == key(&problem)) {
            self.0.push(problem);
        }
    }

    /// Adds another look's problems.
    pub(crate) fn extend(&mut self, other: Self) {
        other.0.into_iter().for_each(|problem| self.add(problem));
    }

    pub(crate) const fn is_healthy(&self) -> bool {
        self.0.is_empty()
    }

    /// Converts to `VolumeCondition`, the form before CSI 1.13. `well` is the message where nothing is wrong.
    pub(crate) fn to_volume_condition(&self, well: &str) -> VolumeCondition {
        let messages: Vec<&str> = self.0.iter().map(|it| it.message.as_str()).collect();
        VolumeCondition {
            abnormal: !self.is_healthy(),
            message: if self.is_healthy() {
                well.to_owned()
            } else {
                messages.join("; ")
            },
        }
    }

    /// Converts to `VolumeHealth`, CSI 1.13's form.
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
    /// Looks for problems of a volume's image. Fails only for what concerns all images: their directory was
    /// replaced, which `NodeGetStorageHealth` reports.
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

    /// Looks for problems of the data directory, which all volumes share.
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
                    "{}: its file system is read-only; hint: the kernel's log may tell of an error of its disk",
                    self.settings.data_dir.display()
                ),
            ),
            Ok(space) if space.reserved > space.bytes => problem(
                StorageDegraded,
                "RoomTaken",
                format!(
                    "{}: volumes were promised {} bytes, and there is space for {}: writes to a volume may fail; \
                     hint: make space, or delete volumes",
                    self.settings.data_dir.display(),
                    space.reserved,
                    space.bytes
                ),
            ),
            Ok(_) => Vec::new(),
        }
    }
}

/// Converts the error of one image to the volume's problem. An error of the directory is returned as it is.
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
    fn both_forms_tell_of_every_problem_and_of_each_once() {
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
        let told = health.into_volume_health("v");
        let told = told
            .health_statuses
            .iter()
            .map(|it| (it.status(), it.reason.as_str(), it.message.as_str()));
        let expected = [(Degraded, "A", "first"), (DataLoss, "A", "worse")];
        assert_eq!(told.collect::<Vec<_>>(), expected);
    }
}

//! Problems of a volume's image, and of the directory of all images.

use crust_proto::csi::v1::node_get_storage_health_response::StorageBackendHealth;
use crust_proto::csi::v1::{StorageHealthErrorType, VolumeHealthErrorType};
use crust_state::error_message;

use super::BlockDriver;
use super::images::ImageError;
use super::record::Record;
use crate::health::{Health, Problem};
use crate::refusal::Refusal;

impl BlockDriver {
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
}

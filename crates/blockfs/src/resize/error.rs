//! The sentence.

use std::path::PathBuf;

use super::Misfit;
use crate::device::DeviceError;
use crate::fstypes::GrowthError;

/// Why a file system has not been grown. The caller knows the volume.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// No size is within the limits.
    #[error("device {device:?}: {misfit}")]
    Limits {
        /// The device's path.
        device: PathBuf,
        /// The numbers.
        misfit: Misfit,
    },
    /// It can't be grown to any size.
    #[error(transparent)]
    Growth(#[from] GrowthError),
}

impl From<DeviceError> for ResizeError {
    fn from(error: DeviceError) -> Self {
        Self::Growth(error.into())
    }
}

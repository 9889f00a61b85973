//! Errors of a pod's steps.

use std::io;
use std::path::PathBuf;

use crust_state::sentence;

use crate::cri::CriError;
use crate::pods::config::ConfigError;
use crate::pods::failures::Failure;

/// A step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The pod asks for what can't be.
    #[error(transparent)]
    Config(ConfigError),
    /// The sandbox couldn't be made.
    #[error(transparent)]
    Sandbox(CriError),
    /// The runtime can't say whether it has an image.
    #[error("failed to inspect image {image:?}: {source}")]
    Inspect {
        /// Its name.
        image: String,
        /// The runtime's answer.
        source: CriError,
    },
    /// An image couldn't be pulled.
    #[error("failed to pull image {image:?}: {source}")]
    Pull {
        /// Its name.
        image: String,
        /// The runtime's answer.
        source: CriError,
    },
    /// An image is gone as soon as it was pulled.
    #[error("image {0:?} isn't there, and it was pulled")]
    Vanished(String),
    /// An image isn't there.
    #[error("container image {0:?} is not present with pull policy of Never")]
    NeverPulled(String),
    /// The container couldn't be made.
    #[error(transparent)]
    Create(CriError),
    /// It could be, and not started.
    #[error(transparent)]
    Start(CriError),
    /// Logs have no place, or stay.
    #[error("{call} {}: {source}", path.display())]
    Logs {
        call: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Not everything that was to end has ended.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    End(Vec<CriError>),
}

impl StepError {
    /// In one word, as kubelet's.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Config(_) => Failure::CONFIG,
            Self::Sandbox(_) => "CreatePodSandboxError",
            Self::Inspect { .. } => "ImageInspectError",
            Self::Pull { .. } | Self::Vanished(_) => "ErrImagePull",
            Self::NeverPulled(_) => "ErrImageNeverPull",
            Self::Create(_) | Self::Logs { .. } => "CreateContainerError",
            Self::Start(_) => "RunContainerError",
            Self::End(_) => "KillContainerError",
        }
    }

    /// The reason of what is wrong with an image, and told as that.
    pub(super) const fn images_reason(&self) -> Option<&'static str> {
        match self {
            Self::Pull { .. } | Self::NeverPulled(_) => Some(self.reason()),
            _ => None,
        }
    }
}

impl From<&StepError> for Failure {
    fn from(error: &StepError) -> Self {
        Self {
            reason: error.reason(),
            message: sentence(error),
            is_pull: matches!(error, StepError::Pull { .. }),
        }
    }
}

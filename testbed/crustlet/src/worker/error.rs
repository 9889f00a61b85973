//! Errors of a pod's steps.

use std::io;
use std::path::PathBuf;

use crust_state::error_message;

use crate::cri::CriError;
use crate::pods::config::ConfigError;
use crate::pods::failures::Failure;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The pod's configuration is invalid or not supported.
    #[error(transparent)]
    Config(ConfigError),
    #[error(transparent)]
    Sandbox(CriError),
    /// The container runtime failed to report whether it has an image.
    #[error("failed to inspect image {image:?}: {source}")]
    Inspect { image: String, source: CriError },
    #[error("failed to pull image {image:?}: {source}")]
    Pull { image: String, source: CriError },
    /// An image doesn't exist although it was just pulled.
    #[error("image {0:?} is missing right after it was pulled")]
    MissingAfterPull(String),
    /// The image doesn't exist, and the pull policy is `Never`.
    #[error("container image {0:?} is not present with pull policy of Never")]
    NeverPulled(String),
    #[error(transparent)]
    Create(CriError),
    #[error(transparent)]
    Start(CriError),
    /// The logs' directory couldn't be created, or logs couldn't be removed.
    #[error("{call} {}: {source}", path.display())]
    Logs {
        call: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Containers or sandboxes couldn't be stopped or removed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    End(Vec<CriError>),
}

impl StepError {
    /// Returns kubelet's reason for the error.
    const fn reason(&self) -> &'static str {
        match self {
            Self::Config(_) => Failure::CONFIG_ERROR,
            Self::Sandbox(_) => "CreatePodSandboxError",
            Self::Inspect { .. } => "ImageInspectError",
            Self::Pull { .. } | Self::MissingAfterPull(_) => "ErrImagePull",
            Self::NeverPulled(_) => "ErrImageNeverPull",
            Self::Create(_) | Self::Logs { .. } => "CreateContainerError",
            Self::Start(_) => "RunContainerError",
            Self::End(_) => "KillContainerError",
        }
    }

    /// Returns the reason of an error that an event with the details was already emitted about.
    pub(super) const fn image_error_reason(&self) -> Option<&'static str> {
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
            message: error_message(error),
            is_pull: matches!(error, StepError::Pull { .. }),
        }
    }
}

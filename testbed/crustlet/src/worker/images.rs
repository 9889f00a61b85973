//! Pulls the images of containers.

use std::time::Instant;

use crust_proto::cri::v1::Image;
use crust_state::error_message;
use k8s_openapi::api::core::v1::Container;

use super::{PodWorker, StepError};
use crate::objects::Pod;

impl PodWorker {
    /// Returns a container's image, after pulling it if the pull policy requires that.
    pub(super) async fn ensure_image(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Image, StepError> {
        let name = container.image.as_deref().unwrap_or_default();
        let policy = PullPolicy::from_container(container);
        match (self.look_up(name).await?, policy) {
            (Some(image), PullPolicy::IfNotPresent | PullPolicy::Never) => {
                let message = format!("Container image {name:?} already present on machine");
                self.events.normal(pod, "Pulled", message);
                Ok(image)
            }
            (None, PullPolicy::Never) => {
                let error = StepError::NeverPulled(name.to_owned());
                self.events
                    .warning(pod, "ErrImageNeverPull", error_message(&error));
                Err(error)
            }
            (_, PullPolicy::Always | PullPolicy::IfNotPresent) => self.pull(pod, name).await,
        }
    }

    async fn pull(&self, pod: &Pod, name: &str) -> Result<Image, StepError> {
        let message = format!("Pulling image {name:?}");
        self.events.normal(pod, "Pulling", message);
        let start = Instant::now();
        if let Err(source) = self.cri.pull_image(name).await {
            let message = format!("Failed to pull image {name:?}: {}", error_message(&source));
            self.events.warning(pod, "Failed", message);
            return Err(StepError::Pull {
                image: name.to_owned(),
                source,
            });
        }
        let seconds = start.elapsed().as_secs_f64();
        let message = format!("Successfully pulled image {name:?} in {seconds:.1}s");
        self.events.normal(pod, "Pulled", message);
        let image = self.look_up(name).await?;
        image.ok_or_else(|| StepError::MissingAfterPull(name.to_owned()))
    }

    async fn look_up(&self, name: &str) -> Result<Option<Image>, StepError> {
        let found = self.cri.image(name).await;
        found.map_err(|source| StepError::Inspect {
            image: name.to_owned(),
            source,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// Returns a container's policy. The default depends on the image's tag, as the API server sets it.
    fn from_container(container: &Container) -> Self {
        match container.image_pull_policy.as_deref() {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some("IfNotPresent") => Self::IfNotPresent,
            _ if is_latest(container.image.as_deref().unwrap_or_default()) => Self::Always,
            _ => Self::IfNotPresent,
        }
    }
}

/// Returns whether an image's tag is `latest`. That is the default for an image with neither a tag nor a digest.
fn is_latest(image: &str) -> bool {
    let (name, digest) = image
        .split_once('@')
        .map_or((image, None), |(name, digest)| (name, Some(digest)));
    // A colon before the last slash separates the port of a registry.
    let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
    match last.rsplit_once(':') {
        Some((_, tag)) => tag == "latest",
        None => digest.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_policy_depends_on_the_tag() {
        let digest = format!("app@sha256:{}", "0".repeat(64));
        for (image, policy, expected) in [
            ("app", None, PullPolicy::Always),
            ("app:latest", None, PullPolicy::Always),
            ("app:1", None, PullPolicy::IfNotPresent),
            ("registry:5000/app", None, PullPolicy::Always),
            ("registry:5000/app:1", None, PullPolicy::IfNotPresent),
            (&digest, None, PullPolicy::IfNotPresent),
            ("app", Some("Never"), PullPolicy::Never),
            ("app", Some("IfNotPresent"), PullPolicy::IfNotPresent),
            ("app:1", Some("Always"), PullPolicy::Always),
        ] {
            let container = Container {
                image: Some(image.to_owned()),
                image_pull_policy: policy.map(str::to_owned),
                ..Container::default()
            };
            assert_eq!(
                PullPolicy::from_container(&container),
                expected,
                "{image} {policy:?}"
            );
        }
    }
}

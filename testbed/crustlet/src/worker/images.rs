//! A container's image.

use std::time::Instant;

use crust_proto::cri::v1::Image;
use crust_state::sentence;
use k8s_openapi::api::core::v1::Container;

use super::{StepError, Worker};
use crate::objects::Pod;
use crate::pods::config::image::PullPolicy;

impl Worker {
    /// The image, pulled where its policy says so.
    pub(super) async fn ensure_image(
        &self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Image, StepError> {
        let name = container.image.as_deref().unwrap_or_default();
        let policy = PullPolicy::of(container);
        match (self.look_up(name).await?, policy) {
            (Some(image), PullPolicy::IfNotPresent | PullPolicy::Never) => {
                let message = format!("Container image {name:?} already present on machine");
                self.events.normal(pod, "Pulled", message);
                Ok(image)
            }
            (None, PullPolicy::Never) => {
                let error = StepError::NeverPulled(name.to_owned());
                self.events
                    .warning(pod, "ErrImageNeverPull", sentence(&error));
                Err(error)
            }
            (_, PullPolicy::Always | PullPolicy::IfNotPresent) => self.pull(pod, name).await,
        }
    }

    async fn pull(&self, pod: &Pod, name: &str) -> Result<Image, StepError> {
        let message = format!("Pulling image {name:?}");
        self.events.normal(pod, "Pulling", message);
        let since = Instant::now();
        if let Err(source) = self.cri.pull_image(name).await {
            let message = format!("Failed to pull image {name:?}: {}", sentence(&source));
            self.events.warning(pod, "Failed", message);
            return Err(StepError::Pull {
                image: name.to_owned(),
                source,
            });
        }
        let took = since.elapsed().as_secs_f64();
        let message = format!("Successfully pulled image {name:?} in {took:.1}s");
        self.events.normal(pod, "Pulled", message);
        let image = self.look_up(name).await?;
        image.ok_or_else(|| StepError::Vanished(name.to_owned()))
    }

    async fn look_up(&self, name: &str) -> Result<Option<Image>, StepError> {
        let found = self.cri.image(name).await;
        found.map_err(|source| StepError::Inspect {
            image: name.to_owned(),
            source,
        })
    }
}

//! createRuntime of a container: it exists, and has its volumes.

use anyhow::Result;
use crust_mount::volume::{Context, publish};
use crust_state::TargetPath;

use crate::state::ContainerState;

/// Makes the container a user of its volumes. An error fails the container's create: a user that
/// nobody knows of would lose its volume to the next pod.
pub(crate) fn run(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    for target in volumes {
        publish(context, target, &container.id, container.pid)?;
    }
    Ok(())
}

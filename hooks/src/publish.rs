//! createRuntime of a container: it exists, and has its volumes.

use anyhow::{Context as _, Result, bail};
use crust_mount::propagated;
use crust_mount::volume::{Context, check_host, publish};
use crust_state::TargetPath;

use crate::state::ContainerState;

/// Makes the container a user of its volumes. An error fails the container's create: a user that
/// nobody knows of would lose its volume to the next pod.
pub(crate) fn run(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    let names = || {
        let names: Vec<_> = volumes.iter().map(TargetPath::volume_name).collect();
        format!("volume {}", names.join(", "))
    };
    // Unmounts the copies of all volumes before any volume's error ends the hook: a copy that is left on the
    // host stays there.
    let copies = propagated::unmount_copies(&context.config.attach_directory(), context.deadline);
    let copies = copies.with_context(names)?;
    let checked = volumes
        .iter()
        .map(|target| check_host(context, &copies, target, &container.id));
    let errors: Vec<String> = checked
        .filter_map(|checked| Some(checked.err()?.to_string()))
        .collect();
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    for target in volumes {
        publish(context, target, &container.id, container.pid)?;
    }
    Ok(())
}

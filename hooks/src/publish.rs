//! createRuntime of a container: it exists, and has its volumes.

use anyhow::{Context as _, Result, bail};
use crust_mount::mountinfo::Table;
use crust_mount::volume::{Context, publish, take_back};
use crust_state::TargetPath;

use crate::state::ContainerState;

/// Makes the container a user of its volumes. An error fails the container's create: a user that
/// nobody knows of would lose its volume to the next pod.
pub(crate) fn run(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    // Of all of them first, whatever becomes of one: what is left on the host would stay there.
    let mut errors = all_taken_back(context, container, volumes)?;
    if !errors.is_empty() {
        // What lay below another volume's mount can be taken by now.
        errors.extend(all_taken_back(context, container, volumes)?);
        errors.sort();
        errors.dedup();
        bail!("{}", errors.join("; "));
    }
    for target in volumes {
        publish(context, target, &container.id, container.pid)?;
    }
    Ok(())
}

/// What of the volumes came out of the container, an error each.
fn all_taken_back(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<Vec<String>> {
    let names = || {
        let names: Vec<_> = volumes.iter().map(TargetPath::volume_name).collect();
        format!("volume {}", names.join(", "))
    };
    let table = Table::own().with_context(names)?;
    let taken = volumes
        .iter()
        .map(|target| take_back(context, &table, target, &container.id));
    let errors = taken.filter_map(Result::err).map(|it| it.to_string());
    Ok(errors.collect())
}

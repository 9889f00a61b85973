//! poststop: a container or a sandbox has ended.

use anyhow::{Result, bail};
use crust_state::TargetPath;
use crust_volume::{Context, release, release_sandbox, sweep};

use crate::state::ContainerState;

/// Forgets a container. Goes on after an error and gives back all of them.
pub(crate) fn container(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    let released = volumes
        .iter()
        .map(|target| release(context, target, &container.id));
    let errors = released
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    finish(context, errors)
}

/// Forgets a sandbox.
pub(crate) fn sandbox(context: &Context<'_>, container: &ContainerState) -> Result<()> {
    let errors = release_sandbox(context, &container.id);
    finish(context, errors.iter().map(ToString::to_string).collect())
}

fn finish(context: &Context<'_>, mut errors: Vec<String>) -> Result<()> {
    errors.extend(sweep(context).err().map(|error| error.to_string()));
    if errors.is_empty() {
        return Ok(());
    }
    bail!("{}", errors.join("; "))
}

//! createRuntime of a container: it exists, and has its volumes.

use anyhow::{Result, bail};
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
    let mut errors = Vec::new();
    for _ in 0..=volumes.len() {
        let known = errors.len();
        take_all_back(context, container, volumes, &mut errors);
        // What lies below another volume's mount can be taken the next time.
        if errors.len() == known {
            break;
        }
    }
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    for target in volumes {
        publish(context, target, &container.id, container.pid)?;
    }
    Ok(())
}

/// Adds an error for each volume of which something came out of the container, once.
fn take_all_back(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
    errors: &mut Vec<String>,
) {
    let mut add = |error: String| {
        if !errors.contains(&error) {
            errors.push(error);
        }
    };
    let table = match Table::own() {
        Ok(table) => table,
        Err(error) => {
            let names: Vec<_> = volumes.iter().map(TargetPath::volume_name).collect();
            return add(format!("volume {}: {error}", names.join(", ")));
        }
    };
    for target in volumes {
        if let Err(error) = take_back(context, &table, target, &container.id) {
            add(error.to_string());
        }
    }
}

//! Records containers as users of volumes (createRuntime), and removes users and sandboxes that have ended (poststop).

use anyhow::{Context as _, Result, bail};
use crust_state::TargetPath;
use crust_volume::{Context, check_host_mounts, propagated_mounts, sweep};

use crate::input::ContainerState;

/// Confirms the container as a user of its volumes. An error fails the container's create: the volume of a user without
/// a record could be given to another pod.
pub(crate) fn confirm(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    let subject = || {
        let names: Vec<_> = volumes.iter().map(TargetPath::volume_name).collect();
        format!("volume {}", names.join(", "))
    };
    // Unmount the copies of all volumes before an error of one volume can end the hook. Nothing else would remove a
    // copy on the host.
    let copies =
        propagated_mounts::unmount_copies(&context.config.attach_directory(), context.deadline);
    let copies = copies.with_context(subject)?;
    let mut errors = Vec::new();
    for (checked, target) in volumes.iter().enumerate() {
        if context.deadline.is_expired() {
            errors.push(timeout_error(
                volumes,
                checked,
                "checked for mounts on the host",
            ));
            break;
        }
        let result = check_host_mounts(context, &copies, target, &container.id);
        errors.extend(result.err().map(|error| error.to_string()));
    }
    if !errors.is_empty() {
        bail!("{}", errors.join("; "));
    }
    for (recorded, target) in volumes.iter().enumerate() {
        if context.deadline.is_expired() {
            bail!("{}", timeout_error(volumes, recorded, "recorded"));
        }
        crust_volume::confirm(context, target, &container.id, container.pid)?;
    }
    Ok(())
}

fn timeout_error(volumes: &[TargetPath], done: usize, what: &str) -> String {
    format!(
        "volume {}: timeout: only {done} of the container's {} volumes were {what} before the hook's deadline; hint: \
         retry when the node is less busy, or give the container fewer volumes",
        volumes[done].volume_name(),
        volumes.len()
    )
}

/// Removes a container that has ended from the users of its volumes. Goes on after an error, and fails with all errors.
pub(crate) fn release(
    context: &Context<'_>,
    container: &ContainerState,
    volumes: &[TargetPath],
) -> Result<()> {
    let released = volumes
        .iter()
        .map(|target| crust_volume::release(context, target, &container.id));
    let errors = released
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    sweep_and_report(context, errors)
}

/// Removes a sandbox that has ended from the records, and from the users of its volumes.
pub(crate) fn release_sandbox(context: &Context<'_>, container: &ContainerState) -> Result<()> {
    let errors = crust_volume::release_sandbox(context, &container.id);
    sweep_and_report(context, errors.iter().map(ToString::to_string).collect())
}

/// Sweeps the records of bundles and sandboxes that are gone. Fails with the given errors and those of the sweep.
fn sweep_and_report(context: &Context<'_>, mut errors: Vec<String>) -> Result<()> {
    errors.extend(sweep(context).err().map(|error| error.to_string()));
    if errors.is_empty() {
        return Ok(());
    }
    bail!("{}", errors.join("; "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crust_blockfs::Deadline;
    use crust_blockfs::device::LoopDeviceCache;
    use crust_state::{Config, CrustDirectory, StateDirectory};

    use super::*;

    #[test]
    fn no_volume_is_checked_after_the_hooks_deadline() {
        let temporary = tempfile::tempdir().unwrap();
        let config = Config {
            crust_root: temporary.path().join("crust"),
            state_dir: temporary.path().join("run"),
            ..Config::default()
        };
        let container = ContainerState {
            id: "c".to_owned(),
            pid: 1,
        };
        let volumes = ["/1", "/2"].map(|path| TargetPath::new(path).unwrap());
        let confirm_error = |deadline| {
            let context = Context {
                config: &config,
                crust: &CrustDirectory::new(&config),
                state: &StateDirectory::open_lazily(&config.state_dir).unwrap(),
                deadline,
                loop_devices: &LoopDeviceCache::default(),
            };
            confirm(&context, &container, &volumes)
                .unwrap_err()
                .to_string()
        };
        let error = confirm_error(Deadline::after(Duration::ZERO));
        assert!(
            error.starts_with(
                "volume /1: timeout: only 0 of the container's 2 volumes were checked"
            ),
            "{error}"
        );
        let error = confirm_error(Deadline::never());
        assert!(error.contains("nothing is staged at /1"), "{error}");
    }
}

//! Plans those mounts of a config that show deferred volumes.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crust_state::Config;

use super::error::PlanError;
use super::fast_path::source_path;
use super::input::{PlanInput, SourceLookups};
use super::types::PlannedMount;
use crate::matching::{NodeLookup, match_source, refuse_overlay};
use crate::oci::{Mount, MountSource};

pub(super) fn plan_mounts(
    input: &mut PlanInput<'_>,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Vec<PlannedMount>, PlanError> {
    let mut planned = Vec::new();
    let (bundle, lookups) = (input.bundle, &mut input.lookups);
    for (done, mount) in input.mounts.iter().enumerate() {
        if node.is_overdue() {
            let all = input.mounts.len();
            return Err(PlanError::LookupTimeout { done, all });
        }
        planned.extend(plan_mount(mount, bundle, lookups, config, node)?);
    }
    Ok(planned)
}

/// Plans one mount. Returns `None` if the mount doesn't show a volume. A source that is in `lookups` isn't looked up
/// again.
pub(crate) fn plan_mount<'m>(
    mount: &'m Mount<'_>,
    bundle: &Path,
    lookups: &mut SourceLookups<'m>,
    config: &Config,
    node: &impl NodeLookup,
) -> Result<Option<PlannedMount>, PlanError> {
    let failed = |source| PlanError::Match {
        destination: mount.destination.to_string(),
        source,
    };
    if is_overlay(mount) {
        refuse_overlay(&mount.destination, &mount.options, bundle, config, node).map_err(failed)?;
    }
    let Some(given) = &mount.source else {
        return Ok(None);
    };
    let source = MountSource {
        text: Some(Cow::Borrowed(given)),
        is_from_bundle: is_bind(mount),
    };
    let look_up = |source: &MountSource<'_>| {
        match_source(
            &source_path(bundle, given, source.is_from_bundle),
            config,
            node,
        )
    };
    let Some(found) = lookups.get(source, look_up).map_err(failed)? else {
        return Ok(None);
    };
    if !is_bind(mount) {
        let (volume, reason) = (found.volume.volume_name(), "its mount isn't a bind mount");
        return Err(PlanError::Unsupported { volume, reason });
    }
    Ok(Some(PlannedMount {
        index: mount.index,
        destination: PathBuf::from(&*mount.destination),
        source: given.to_string(),
        read_only: found.read_only || is_read_only(mount),
        found,
        maps_ids: mount.has_id_mappings || mount.options.iter().any(|option| is_id_map(option)),
        options: mount.options.iter().map(ToString::to_string).collect(),
    }))
}

/// Returns whether the delegate binds the mount. It does so for the type `bind`, and for the options `bind` and `rbind`
/// with any type (runtime-spec, "Mounts").
pub(super) fn is_bind(mount: &Mount<'_>) -> bool {
    mount.kind.as_deref() == Some("bind")
        || mount
            .options
            .iter()
            .any(|option| option == "bind" || option == "rbind")
}

/// Returns whether the mount is an overlay, the kernel's or fuse-overlayfs.
fn is_overlay(mount: &Mount<'_>) -> bool {
    let kind = mount.kind.as_deref();
    kind.is_some_and(|kind| kind.contains("overlay"))
}

/// Returns whether the option has the delegate map the mount's ids. crun and newer versions of runc have such options.
fn is_id_map(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    name == "idmap" || name == "ridmap"
}

/// Returns whether the options make a mount read-only. The last of several contradicting options counts.
fn is_read_only(mount: &Mount<'_>) -> bool {
    let mut options = mount.options.iter().rev();
    let last = options.find(|option| matches!(&***option, "ro" | "rro" | "rw" | "rrw"));
    last.is_some_and(|option| option.ends_with("ro"))
}

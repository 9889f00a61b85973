//! A config's mounts of deferred volumes.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crust_state::Config;

use super::error::PlanError;
use super::fast_path::bound;
use super::input::{Lookups, PlanInput};
use super::types::PlannedMount;
use crate::matching::{Node, match_source, refuse_overlay};
use crate::oci::{Mount, MountSource};

pub(super) fn matched(
    input: &mut PlanInput<'_>,
    config: &Config,
    node: &impl Node,
) -> Result<Vec<PlannedMount>, PlanError> {
    let mut matched = Vec::new();
    let (bundle, lookups) = (input.bundle, &mut input.lookups);
    for (done, mount) in input.mounts.iter().enumerate() {
        if node.is_overdue() {
            let all = input.mounts.len();
            return Err(PlanError::TooSlow { done, all });
        }
        matched.extend(planned(mount, bundle, lookups, config, node)?);
    }
    Ok(matched)
}

/// Plans one mount; `None` if it isn't of a volume. A source that `lookups` has isn't looked up again.
pub(crate) fn planned<'m>(
    mount: &'m Mount<'_>,
    bundle: &Path,
    lookups: &mut Lookups<'m>,
    config: &Config,
    node: &impl Node,
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
        match_source(&bound(bundle, given, source.is_from_bundle), config, node)
    };
    let Some(found) = lookups.get(source, look_up).map_err(failed)? else {
        return Ok(None);
    };
    if !is_bind(mount) {
        let (volume, what) = (found.volume.volume_name(), "its mount isn't a bind mount");
        return Err(PlanError::Unsupported { volume, what });
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

/// The delegate binds a mount by its options, whatever its type (runtime-spec, "Mounts").
pub(super) fn is_bind(mount: &Mount<'_>) -> bool {
    mount.kind.as_deref() == Some("bind")
        || mount
            .options
            .iter()
            .any(|option| option == "bind" || option == "rbind")
}

/// The kernel's, or fuse-overlayfs.
fn is_overlay(mount: &Mount<'_>) -> bool {
    let kind = mount.kind.as_deref();
    kind.is_some_and(|kind| kind.contains("overlay"))
}

/// crun's option, and newer runc's: the delegate maps the mount itself.
fn is_id_map(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    name == "idmap" || name == "ridmap"
}

/// Whether the options make a mount read-only. Of contradicting options the last one counts.
fn is_read_only(mount: &Mount<'_>) -> bool {
    let mut options = mount.options.iter().rev();
    let last = options.find(|option| matches!(&***option, "ro" | "rro" | "rw" | "rrw"));
    last.is_some_and(|option| option.ends_with("ro"))
}

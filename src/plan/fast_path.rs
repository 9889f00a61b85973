//! Fast path: decides whether a config concerns a volume. It reads only the mounts' sources, so that the time, the
//! system calls and the memory for a config without volumes are bounded by its size, whatever else it contains. A
//! config that concerns a volume is then read in full, in a form that all delegates read alike. Sources that the fast
//! path looked up aren't looked up again for the plan.

use std::borrow::Cow;
use std::path::Path;

use crust_state::Config;
use crust_state::config::SandboxMode;

use super::input::{PlanLookup, SourceLookups};
use crate::matching::{MatchError, match_source};
use crate::oci::{Document, ParserFamily};
use crate::role::Role;

/// The subject of errors about a bundle whose config an earlier create has rewritten.
pub(crate) const RECREATED_BUNDLE: &str = "a bundle that was created before";

/// A config, its bundle, and how the delegate reads it.
#[derive(Clone, Copy)]
pub(crate) struct ConfigReading<'a, 'd> {
    pub(crate) document: &'a Document<'d>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    /// The family of JSON parsers that the delegate belongs to.
    pub(crate) delegate: ParserFamily,
}

impl<'d> ConfigReading<'_, 'd> {
    /// Returns the volume, pod or bundle that the config concerns, as the subject of errors; `None` if the delegate
    /// gets the bundle unchanged. Adds the sources that were looked up to `lookups`.
    pub(crate) fn subject(
        self,
        config: &Config,
        node: &impl PlanLookup,
        lookups: &mut SourceLookups<'d>,
    ) -> Option<String> {
        let volume = self.first_volume(config, node, lookups);
        volume.or_else(|| self.sandbox_with_volumes(config, node))
    }

    /// Returns the first volume that a mount leads to, however the delegate reads the config, as the subject of errors.
    pub(super) fn first_volume(
        self,
        config: &Config,
        node: &impl PlanLookup,
        lookups: &mut SourceLookups<'d>,
    ) -> Option<String> {
        let attached = config.attach_directory();
        self.document.find_source(self.delegate, |source| {
            let found = lookups.get(source, |source| {
                // Past the deadline, sources aren't looked up, and must not be passed through. The plan reports the
                // timeout.
                if node.is_overdue() {
                    return Err("a mount".to_owned());
                }
                let Some(text) = &source.text else {
                    return Err("a mount".to_owned());
                };
                let path = source_path(self.bundle, text, source.is_from_bundle);
                if path.starts_with(&attached) {
                    return Err(RECREATED_BUNDLE.to_owned());
                }
                match_source(&path, config, node).map_err(error_subject)
            });
            match found {
                Ok(found) => found.map(|found| format!("volume {}", found.volume.volume_name())),
                Err(subject) => Some(subject),
            }
        })
    }

    fn sandbox_with_volumes(self, config: &Config, node: &impl PlanLookup) -> Option<String> {
        let role = Role::from_annotations(|key| self.document.annotation(key));
        let Ok(Role::Sandbox {
            pod_uid: Some(pod_uid),
        }) = role
        else {
            return None;
        };
        let holds_volumes = config.sandbox == SandboxMode::Always
            || node
                .staged_for_pod(&pod_uid)
                .map_or(true, |staged| !staged.is_empty());
        holds_volumes.then(|| format!("the sandbox of pod {pod_uid}"))
    }
}

/// Returns the subject of a failed lookup. The error itself is reported by the plan.
fn error_subject(error: MatchError) -> String {
    match error {
        MatchError::StagedList(_) => "a volume".to_owned(),
        MatchError::SourceLookup(_) | MatchError::AmbiguousPath { .. } => "a mount".to_owned(),
        MatchError::Entry { volume, .. }
        | MatchError::Subpath { volume, .. }
        | MatchError::Indirect { volume, .. }
        | MatchError::VolumeLookup { volume, .. }
        | MatchError::Unstaged { volume, .. } => format!("volume {volume}"),
    }
}

/// Returns the path of a mount's source. As for the delegate, the relative source of a bind is relative to the bundle.
pub(super) fn source_path<'a>(bundle: &Path, source: &'a str, is_bind: bool) -> Cow<'a, Path> {
    if is_bind && !source.starts_with('/') {
        Cow::Owned(bundle.join(source))
    } else {
        Cow::Borrowed(Path::new(source))
    }
}

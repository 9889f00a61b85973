//! Fast path: whether a config concerns a volume. Only the mounts' sources are read for that, so that a config without
//! volumes takes time, calls and memory that are bounded by its size, whatever else it contains. A config that concerns
//! a volume is then read in full, and by one reading. Its sources that were looked up aren't looked up again for the
//! plan.

use std::borrow::Cow;
use std::path::Path;

use crust_state::Config;
use crust_state::config::SandboxMode;

use super::input::{Lookups, Records};
use crate::matching::{MatchError, match_source};
use crate::oci::{Document, ParserFamily};
use crate::role::Role;

/// The name, for an error, of what the config of an earlier create concerns.
pub(crate) const CREATED_BEFORE: &str = "a bundle that was created before";

/// A config, its bundle, and how the delegate reads it.
#[derive(Clone, Copy)]
pub(crate) struct ConfigReading<'a, 'd> {
    pub(crate) document: &'a Document<'d>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    /// The way in which the delegate reads it.
    pub(crate) delegate: ParserFamily,
}

impl<'d> ConfigReading<'_, 'd> {
    /// Returns the name of whom the config concerns, for an error; `None`: the delegate gets the bundle as it is.
    /// What was looked up is added to `lookups`.
    pub(crate) fn concern(
        self,
        config: &Config,
        records: &impl Records,
        lookups: &mut Lookups<'d>,
    ) -> Option<String> {
        let named = self.named_by_a_mount(config, records, lookups);
        named.or_else(|| self.pod_of_a_sandbox(config, records))
    }

    /// Returns the name of the first volume that a mount names, by whatever reading.
    pub(super) fn named_by_a_mount(
        self,
        config: &Config,
        records: &impl Records,
        lookups: &mut Lookups<'d>,
    ) -> Option<String> {
        let attached = config.attach_directory();
        self.document.find_source(self.delegate, |source| {
            let found = lookups.get(source, |source| {
                // The plan fails then and says why: a source that wasn't looked up isn't passed on.
                if records.is_overdue() {
                    return Err("a mount".to_owned());
                }
                let Some(text) = &source.text else {
                    return Err("a mount".to_owned());
                };
                let path = bound(self.bundle, text, source.is_from_bundle);
                if path.starts_with(&attached) {
                    return Err(CREATED_BEFORE.to_owned());
                }
                match_source(&path, config, records).map_err(named_by_error)
            });
            match found {
                Ok(found) => found.map(|found| format!("volume {}", found.volume.volume_name())),
                Err(named) => Some(named),
            }
        })
    }

    fn pod_of_a_sandbox(self, config: &Config, records: &impl Records) -> Option<String> {
        let role = Role::from_annotations(|key| self.document.annotation(key));
        let Ok(Role::Sandbox {
            pod_uid: Some(pod_uid),
        }) = role
        else {
            return None;
        };
        let is_wanted = config.sandbox == SandboxMode::Always
            || records
                .staged_for_pod(&pod_uid)
                .map_or(true, |staged| !staged.is_empty());
        is_wanted.then(|| format!("the sandbox of pod {pod_uid}"))
    }
}

/// Returns the name of whom a failed lookup concerns. The plan says in full what is wrong.
fn named_by_error(error: MatchError) -> String {
    match error {
        MatchError::Pod(_) => "a volume".to_owned(),
        MatchError::Source(_) | MatchError::Readings { .. } => "a mount".to_owned(),
        MatchError::Entry { volume, .. }
        | MatchError::Subpath { volume, .. }
        | MatchError::Elsewhere { volume, .. }
        | MatchError::Place { volume, .. }
        | MatchError::Unstaged { volume, .. } => format!("volume {volume}"),
    }
}

/// Returns the path of a mount's source. The delegate takes a relative bind source from the bundle.
pub(super) fn bound<'a>(bundle: &Path, source: &'a str, is_bind: bool) -> Cow<'a, Path> {
    if is_bind && !source.starts_with('/') {
        Cow::Owned(bundle.join(source))
    } else {
        Cow::Borrowed(Path::new(source))
    }
}

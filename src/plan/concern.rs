//! The first look at every config: is it any of ours? It keeps next to nothing and looks only at the
//! mounts' sources, so that what isn't passes in time, calls and memory that its size bounds, whatever
//! else is in it. What is ours is then read in full, and by one reading.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::path::Path;

use crust_state::Config;
use crust_state::config::SandboxMode;

use super::facts::Records;
use crate::matching::{Match, MatchError, match_source};
use crate::oci::{Document, Reader, Source};
use crate::role::Role;

/// So many sources are looked at once, however often they stand there and in whatever turns: more than
/// an ordinary config has.
const REMEMBERED: usize = 1000;

/// Whom the config of an earlier create concerns.
pub(crate) const CREATED_BEFORE: &str = "a bundle that was created before";

/// A config, and who will read it.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a, 'd> {
    pub(crate) document: &'a Document<'d>,
    /// The bundle's directory.
    pub(crate) bundle: &'a Path,
    /// What kind of reader the delegate is.
    pub(crate) delegate: Reader,
}

/// Sources of mounts that were found to lead to no volume, so that the plan needn't look them up again: an ordinary
/// container has thirty. A seed would be a call of the kernel's for every container, and so few need none.
#[derive(Default)]
pub(crate) struct Passed<'d>(HashSet<Source<'d>, BuildHasherDefault<DefaultHasher>>);

impl Passed<'_> {
    pub(super) fn has(&self, text: &str, is_from_bundle: bool) -> bool {
        self.0.contains(&Source {
            text: Some(Cow::Borrowed(text)),
            is_from_bundle,
        })
    }
}

impl<'d> Look<'_, 'd> {
    /// Returns the name of whom the config concerns, for an error; `None`: the delegate gets the bundle as it is.
    /// Sources that lead to no volume are added to `passed`.
    pub(crate) fn concern(
        self,
        config: &Config,
        records: &impl Records,
        passed: &mut Passed<'d>,
    ) -> Option<String> {
        let named = self.named_by_a_mount(config, records, passed);
        named.or_else(|| self.pod_of_a_sandbox(config, records))
    }

    /// Returns the volume that a mount names, by whatever reading. Sources that lead to none are added to `passed`.
    pub(super) fn named_by_a_mount(
        self,
        config: &Config,
        records: &impl Records,
        passed: &mut Passed<'d>,
    ) -> Option<String> {
        let Passed(seen) = passed;
        let attached = config.attach_directory();
        self.document.find_source(self.delegate, |source| {
            if seen.contains(&source) {
                return None;
            }
            // Planning fails then, with a sentence: what wasn't looked at isn't passed on.
            if records.is_overdue() {
                return Some("a mount".to_owned());
            }
            let named = self.named_by(&source, &attached, config, records);
            // What is borrowed costs no memory to speak of; others are rare, and looked at each time.
            let is_borrowed = matches!(source.text, Some(Cow::Borrowed(_)));
            if named.is_none() && is_borrowed && seen.len() < REMEMBERED {
                seen.insert(source);
            }
            named
        })
    }

    fn named_by(
        self,
        source: &Source<'_>,
        attached: &Path,
        config: &Config,
        records: &impl Records,
    ) -> Option<String> {
        let Some(text) = &source.text else {
            return Some("a mount".to_owned());
        };
        let path = bound(self.bundle, text, source.is_from_bundle);
        if path.starts_with(attached) {
            return Some(CREATED_BEFORE.to_owned());
        }
        match match_source(&path, config, records) {
            Ok(None) => None,
            Ok(Some(Match { volume, .. })) => Some(format!("volume {}", volume.volume_name())),
            // Said in full when the config is planned.
            Err(MatchError::Pod(_)) => Some("a volume".to_owned()),
            Err(MatchError::Source(_) | MatchError::Readings { .. }) => Some("a mount".to_owned()),
            Err(
                MatchError::Entry { volume, .. }
                | MatchError::Subpath { volume, .. }
                | MatchError::Elsewhere { volume, .. }
                | MatchError::Place { volume, .. }
                | MatchError::Unstaged { volume, .. },
            ) => Some(format!("volume {volume}")),
        }
    }

    fn pod_of_a_sandbox(self, config: &Config, records: &impl Records) -> Option<String> {
        let role = Role::of(|key| self.document.annotation(key));
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

/// Where a mount's source is: the delegate takes a relative bind source from the bundle.
pub(super) fn bound<'a>(bundle: &Path, source: &'a str, is_bind: bool) -> Cow<'a, Path> {
    if is_bind && !source.starts_with('/') {
        Cow::Owned(bundle.join(source))
    } else {
        Cow::Borrowed(Path::new(source))
    }
}

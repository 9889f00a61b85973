//! Rewrites a config as planned, and restores it. A rewrite is a list of edits, and the data to undo them.

mod container;
#[cfg(feature = "fuzzing")]
pub(crate) mod properties;
mod sandbox;
mod undo;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use crust_state::bundle::{
    AddedElement, BundleRecord, ConfigLocation, Containers, RemovedMount, ReplacedSource,
};
use crust_state::record::Version;
use crust_state::timeouts::HookTimeouts;
use crust_state::{DelegateKind, TargetPath};
use oci_spec::runtime::{Hook, HookBuilder};
use serde::Serialize;

use crate::oci::{ArrayPath, Document, Edit};

pub(crate) use container::{ContainerVolumes, container};
pub(crate) use sandbox::sandbox;
pub(crate) use undo::{is_marked, is_rewritten, undo};

/// `argv[0]` of the hooks.
const PROGRAM: &str = "crust-mount-hook";

/// The program that the added hooks run, and their common arguments.
#[derive(Debug)]
pub(crate) struct Hooks {
    /// Path of `crust-mount-hook`.
    pub(crate) program: PathBuf,
    /// Path of the program that CSI drivers call about volumes in use (KEP-2857: `runtime-cli`).
    pub(crate) cli: PathBuf,
    /// Path of the configuration that was read; `None` for the defaults.
    pub(crate) config: Option<PathBuf>,
    /// The delegate that runs the hooks.
    pub(crate) delegate: DelegateKind,
}

/// The identity of a bundle in its record.
#[derive(Debug, Clone)]
pub(crate) struct RewrittenBundle {
    /// The config's real path.
    pub(crate) config: PathBuf,
    /// [`BundleRecord::containers`].
    pub(crate) containers: Vec<String>,
}

/// Edits of a config, and the data to undo them. Its serialised form is the part of the bundle's record that describes
/// the edits.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Rewrite {
    #[serde(skip)]
    edits: Vec<Edit>,
    sources: Vec<ReplacedSource>,
    added: Vec<AddedElement>,
    removed: Vec<RemovedMount>,
}

impl Rewrite {
    fn push(&mut self, array: ArrayPath, element: &impl Serialize) -> Result<()> {
        let value =
            serde_json::to_value(element).context("config.json: serialise a new element")?;
        self.edits.push(Edit::Push {
            array,
            json: value.to_string(),
        });
        self.added.push(AddedElement {
            array: array.name().to_owned(),
            element: value,
        });
        Ok(())
    }

    /// Returns the config's new text.
    pub(crate) fn text(&self, document: &Document<'_>) -> Result<Vec<u8>> {
        Ok(document.apply(&self.edits)?)
    }

    /// Returns the config's new text, and the record to restore the old one.
    pub(crate) fn apply(
        self,
        document: &Document<'_>,
        bundle: RewrittenBundle,
    ) -> Result<(Vec<u8>, BundleRecord)> {
        let text = self.text(document)?;
        let record = BundleRecord {
            version: Version,
            containers: Containers(bundle.containers),
            sources: self.sources,
            added: self.added,
            removed: self.removed,
            location: ConfigLocation::look_up(&bundle.config),
            config: bundle.config,
            has_renamed_keys: false,
        };
        Ok((text, record))
    }
}

impl Hooks {
    fn hook(&self, verb: &str, volumes: &[TargetPath], timeouts: HookTimeouts) -> Result<Hook> {
        let mut arguments = vec![PROGRAM.to_owned(), verb.to_owned()];
        if let Some(config) = &self.config {
            arguments.extend(["--config", utf8(config)?].map(str::to_owned));
        }
        for volume in volumes {
            arguments.extend(["--volume", utf8(volume.as_path())?].map(str::to_owned));
        }
        let mut hook = HookBuilder::default().path(&self.program).args(arguments);
        // Each hook ends at its own deadline. The delegate's timeout only ends a hook that sleeps in a system call past
        // its deadline. runc does that reliably. crun 1.21 and 1.28 don't: with any hook `timeout` they fail 4 to 6 %
        // of parallel creates, and some creates sleep for the whole timeout although the hook has ended.
        if self.delegate == DelegateKind::Runc {
            hook = hook.timeout(i64::try_from(timeouts.delegate.as_secs())?);
        }
        Ok(hook.build()?)
    }
}

fn add_arguments<const N: usize>(hook: &mut Hook, more: [&str; N]) {
    if let Some(arguments) = hook.args_mut() {
        arguments.extend(more.map(str::to_owned));
    }
}

/// Returns a path as text for the config. Fails if it isn't UTF-8, since JSON strings are.
fn utf8(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} isn't UTF-8", path.display()))
}

#[cfg(test)]
mod tests;

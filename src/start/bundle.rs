//! Rewrites the config of a locked bundle, and restores it.

use anyhow::{Context as _, Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::foreign::ForeignFile;
use crust_state::{Config, StateDirectory};

use crate::oci::Document;
use crate::rewrite::{self, Rewrite, RewrittenBundle};

/// A bundle whose lock is held.
pub(super) struct Bundle<'a> {
    state: &'a StateDirectory,
    file: &'a ForeignFile,
    /// The data for the bundle's record.
    recorded: RewrittenBundle,
    /// The config as it was before an earlier create rewrote it; `None` if no create has rewritten it.
    original: Option<Vec<u8>>,
}

impl<'a> Bundle<'a> {
    /// Returns a bundle whose config is as its caller wrote it.
    pub(super) fn new(
        state: &'a StateDirectory,
        file: &'a ForeignFile,
        recorded: RewrittenBundle,
    ) -> Self {
        Self {
            state,
            file,
            recorded,
            original: None,
        }
    }

    /// Returns a bundle whose config was rewritten by an earlier create, perhaps under another id.
    pub(super) fn from_rewritten(
        state: &'a StateDirectory,
        file: &'a ForeignFile,
        recorded: RewrittenBundle,
        document: &Document<'_>,
        config: &Config,
    ) -> Result<Self> {
        let (record, text) = original_config(state, &recorded, document, config)?;
        let mut bundle = Self::new(state, file, recorded);
        bundle.original = Some(text);
        bundle.recorded.containers =
            merge_containers(record.containers.0, bundle.recorded.containers);
        Ok(bundle)
    }

    pub(super) fn state(&self) -> &'a StateDirectory {
        self.state
    }

    /// Returns the config as its caller wrote it.
    pub(super) fn text(&self) -> &[u8] {
        self.original.as_deref().unwrap_or(self.file.bytes())
    }

    /// Writes the record, and then the config. A rewritten config without its record couldn't be restored.
    pub(super) fn commit(&self, document: &Document<'_>, rewrite: Rewrite) -> Result<()> {
        let restored = self.write_original()?;
        let file = restored.as_ref().unwrap_or(self.file);
        let name = BundleRecord::record_name(&self.recorded.config);
        let (text, mut record) = rewrite.apply(document, self.recorded.clone())?;
        // If the config has only one reading, the document is the config's own text.
        record.has_renamed_keys = !std::ptr::eq(document.text().as_bytes(), self.text());
        self.state.write_bundle(name, &record)?;
        if let Err(error) = file.replace(&text) {
            self.state.remove_bundle(name)?;
            return Err(error).context(
                "hint: make the bundle's directory writable; runcrust replaces the config.json of a bundle with volumes",
            );
        }
        Ok(())
    }

    /// Restores the config that an earlier create rewrote, and removes its record. Does nothing without such a create.
    pub(super) fn restore(&self) -> Result<()> {
        if self.write_original()?.is_some() {
            let name = BundleRecord::record_name(&self.recorded.config);
            self.state.remove_bundle(name)?;
        }
        Ok(())
    }

    /// Writes the original config back to the disk, and reads it again; `None` if no earlier create rewrote it. This
    /// comes before the new record, so that the record on disk never belongs to another rewrite than the config beside
    /// it.
    fn write_original(&self) -> Result<Option<ForeignFile>> {
        let Some(original) = &self.original else {
            return Ok(None);
        };
        self.file.replace(original)?;
        Ok(Some(self.file.read_again()?))
    }
}

/// Returns the record of the create that rewrote a config, and the config before that rewrite. `document` is the
/// rewritten config, read by [`with_unambiguous_config`](super::with_unambiguous_config).
pub(crate) fn original_config(
    state: &StateDirectory,
    recorded: &RewrittenBundle,
    document: &Document<'_>,
    config: &Config,
) -> Result<(BundleRecord, Vec<u8>)> {
    let Some(record) = state.bundle(BundleRecord::record_name(&recorded.config))? else {
        bail!(
            "{}: was rewritten by an earlier create of this bundle (it contains {} or a mount at /.crust), but the record \
             of that create is missing; hint: regenerate the bundle's config.json, or recreate the pod",
            recorded.config.display(),
            config.attach_directory().display(),
        );
    };
    let text = document.apply(&rewrite::undo(document, &record, config)?)?;
    if !record.has_renamed_keys {
        return Ok((record, text));
    }
    let text = Document::parse(&text)?.unmask_duplicates();
    Ok((record, text))
}

/// Merges the containers of earlier creates with the new ones. Keeps only the latest ones, because a bundle may be
/// created any number of times under new ids.
fn merge_containers(mut earlier: Vec<String>, new: Vec<String>) -> Vec<String> {
    const MAX_CONTAINERS: usize = 32;
    earlier.retain(|container| !new.contains(container));
    earlier.extend(new);
    let first = earlier.len().saturating_sub(MAX_CONTAINERS);
    earlier.split_off(first)
}

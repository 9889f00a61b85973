//! A bundle under its lock: its config is rewritten, and can be restored.

use anyhow::{Context as _, Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::foreign::ForeignFile;
use crust_state::{Config, StateDirectory};

use crate::oci::Document;
use crate::rewrite::{self, Rewrite, RewrittenBundle};

/// A bundle's config, and what is on record of it.
pub(super) struct Bundle<'a> {
    state: &'a StateDirectory,
    file: &'a ForeignFile,
    /// The bundle as its record describes it.
    made: RewrittenBundle,
    /// The config from before an earlier create, which has left it as it is.
    before: Option<Vec<u8>>,
}

impl<'a> Bundle<'a> {
    /// A bundle whose config is as its caller wrote it.
    pub(super) fn new(
        state: &'a StateDirectory,
        file: &'a ForeignFile,
        made: RewrittenBundle,
    ) -> Self {
        Self {
            state,
            file,
            made,
            before: None,
        }
    }

    /// A bundle whose config was rewritten by an earlier create, under whatever id.
    pub(super) fn undone(
        state: &'a StateDirectory,
        file: &'a ForeignFile,
        made: RewrittenBundle,
        document: &Document<'_>,
        config: &Config,
    ) -> Result<Self> {
        let (record, text) = original(state, &made, document, config)?;
        let mut bundle = Self::new(state, file, made);
        bundle.before = Some(text);
        bundle.made.containers = together(record.containers.0, bundle.made.containers);
        Ok(bundle)
    }

    pub(super) fn state(&self) -> &'a StateDirectory {
        self.state
    }

    /// The config as its caller wrote it.
    pub(super) fn text(&self) -> &[u8] {
        self.before.as_deref().unwrap_or(self.file.bytes())
    }

    /// Writes the record, then the config: a config without its record couldn't be undone.
    pub(super) fn commit(&self, document: &Document<'_>, rewrite: Rewrite) -> Result<()> {
        let again = self.brought_back()?;
        let file = again.as_ref().unwrap_or(self.file);
        let name = BundleRecord::name(&self.made.config);
        let (text, mut record) = rewrite.apply(document, self.made.clone())?;
        // Where it has one reading it is read as it stands there.
        record.unread = !std::ptr::eq(document.text().as_bytes(), self.text());
        self.state.write_bundle(name, &record)?;
        if let Err(error) = file.replace(&text) {
            self.state.remove_bundle(name)?;
            return Err(error).context(
                "hint: the config of a bundle with volumes is written anew in its place: its \
                 directory has to allow that",
            );
        }
        Ok(())
    }

    /// Nothing of ours is in the config any more: it is written as it was, if it isn't.
    pub(super) fn leave(&self) -> Result<()> {
        if self.brought_back()?.is_some() {
            let name = BundleRecord::name(&self.made.config);
            self.state.remove_bundle(name)?;
        }
        Ok(())
    }

    /// A rewritten config as it was, on the disk: at no time does a record stand beside a config
    /// that another one was made of.
    fn brought_back(&self) -> Result<Option<ForeignFile>> {
        let Some(before) = &self.before else {
            return Ok(None);
        };
        self.file.replace(before)?;
        Ok(Some(self.file.again()?))
    }
}

/// The text of a config as its caller wrote it before an earlier create rewrote it, and the record
/// that says so. `document` is what was left of it, [`in_one_reading`](super::in_one_reading).
pub(crate) fn original(
    state: &StateDirectory,
    made: &RewrittenBundle,
    document: &Document<'_>,
    config: &Config,
) -> Result<(BundleRecord, Vec<u8>)> {
    let Some(record) = state.bundle(BundleRecord::name(&made.config))? else {
        bail!(
            "{}: was rewritten by an earlier create of this bundle (it names {} or a /.crust), of \
             which no record is left; hint: write the bundle's config.json anew",
            made.config.display(),
            config.attach_directory().display(),
        );
    };
    let text = document.apply(&rewrite::undo(document, &record, config)?)?;
    if !record.unread {
        return Ok((record, text));
    }
    let text = Document::parse(&text)?.unmask_duplicates();
    Ok((record, text))
}

/// Returns the containers of both creates. If a bundle is created again and again under new ids, the last are kept.
fn together(mut earlier: Vec<String>, own: Vec<String>) -> Vec<String> {
    const MOST: usize = 32;
    earlier.retain(|container| !own.contains(container));
    earlier.extend(own);
    let first = earlier.len().saturating_sub(MOST);
    earlier.split_off(first)
}

//! One bundle under its lock: its config is rewritten, and can be brought back.

use anyhow::{Context as _, Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::foreign::ForeignFile;
use crust_state::{Config, StateDirectory};

use crate::oci::Document;
use crate::rewrite::{self, Made, Rewrite};

/// A bundle's config, and what is on record of it.
pub(super) struct Bundle<'a> {
    state: &'a StateDirectory,
    file: &'a ForeignFile,
    /// What a record says of the create.
    made: Made,
    /// An earlier create has left the config as it is.
    rewritten: bool,
}

impl<'a> Bundle<'a> {
    /// A bundle whose config is as its caller wrote it.
    pub(super) fn new(state: &'a StateDirectory, file: &'a ForeignFile, made: Made) -> Self {
        Self {
            state,
            file,
            made,
            rewritten: false,
        }
    }

    /// A bundle whose config was rewritten by an earlier create, under whatever id; and the text
    /// from before that.
    pub(super) fn undone(
        state: &'a StateDirectory,
        file: &'a ForeignFile,
        made: Made,
        document: &Document<'_>,
        config: &Config,
    ) -> Result<(Self, Vec<u8>)> {
        let (record, text) = original(state, &made, document, config)?;
        let mut bundle = Self::new(state, file, made);
        bundle.rewritten = true;
        bundle.made.containers = together(record.containers.0, bundle.made.containers);
        Ok((bundle, text))
    }

    pub(super) fn state(&self) -> &'a StateDirectory {
        self.state
    }

    /// Writes the record, then the config: a config without its record couldn't be undone.
    pub(super) fn commit(self, document: &Document<'_>, rewrite: Rewrite) -> Result<()> {
        let again = self.brought_back(document)?;
        let file = again.as_ref().unwrap_or(self.file);
        let name = BundleRecord::name(&self.made.config);
        let (text, record) = rewrite.apply(document, self.made)?;
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
    pub(super) fn leave(self, document: &Document<'_>) -> Result<()> {
        if self.brought_back(document)?.is_some() {
            let name = BundleRecord::name(&self.made.config);
            self.state.remove_bundle(name)?;
        }
        Ok(())
    }

    /// A rewritten config as it was, on the disk: at no time does a record stand beside a config
    /// that another one was made of.
    fn brought_back(&self, document: &Document<'_>) -> Result<Option<ForeignFile>> {
        if !self.rewritten {
            return Ok(None);
        }
        self.file.replace(&document.apply(&[])?)?;
        Ok(Some(self.file.again()?))
    }
}

/// The text of a config from before an earlier create rewrote it, and the record that says so.
pub(crate) fn original(
    state: &StateDirectory,
    made: &Made,
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
    Ok((record, text))
}

/// Of a bundle that is created again and again under new ids, the last.
fn together(mut earlier: Vec<String>, own: Vec<String>) -> Vec<String> {
    const MOST: usize = 32;
    earlier.retain(|container| !own.contains(container));
    earlier.extend(own);
    let first = earlier.len().saturating_sub(MOST);
    earlier.split_off(first)
}

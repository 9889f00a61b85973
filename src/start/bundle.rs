//! One bundle under its lock: its config is rewritten, and can be brought back.

use std::path::PathBuf;

use anyhow::{Result, bail};
use crust_state::bundle::BundleRecord;
use crust_state::{Config, Digest, StateDirectory};

use crate::oci::{ConfigFile, Document};
use crate::rewrite::{self, Rewrite};

/// A bundle's config, and the records of what earlier creates made of it.
pub(super) struct Bundle<'a> {
    state: &'a StateDirectory,
    file: &'a ConfigFile,
    /// The config's real path.
    path: PathBuf,
    /// Of this create's own record.
    name: Digest,
    /// Records of this config that mean nothing any more once it is written anew.
    earlier: Vec<Digest>,
}

impl<'a> Bundle<'a> {
    /// A bundle whose config is as its caller wrote it.
    pub(super) fn new(
        state: &'a StateDirectory,
        file: &'a ConfigFile,
        path: PathBuf,
        name: Digest,
    ) -> Self {
        Self {
            state,
            file,
            path,
            name,
            earlier: Vec::new(),
        }
    }

    /// A bundle whose config was rewritten by an earlier create, under whatever id; and the text
    /// from before that.
    pub(super) fn undone(
        state: &'a StateDirectory,
        file: &'a ConfigFile,
        path: PathBuf,
        name: Digest,
        document: &Document<'_>,
        config: &Config,
    ) -> Result<(Self, Vec<u8>)> {
        let mut records = state.bundles()?;
        records.retain(|(_, record)| record.config == path);
        // By its text where that is still the same. A caller may have edited it since: then there
        // must be no doubt which record is meant.
        let written = Digest::of(file.bytes());
        let record = match records.iter().find(|(_, record)| record.written == written) {
            Some((_, record)) => record,
            None if records.len() == 1 => &records[0].1,
            None => bail!(
                "{}: was rewritten by an earlier create of this bundle (it names {} or a /.crust), \
                 of which no record is left; hint: write the bundle's config.json anew",
                path.display(),
                config.attach_directory().display(),
            ),
        };
        let text = document.apply(&rewrite::undo(document, record, config)?)?;
        let mut bundle = Self::new(state, file, path, name);
        bundle.earlier = records.into_iter().map(|(name, _)| name).collect();
        Ok((bundle, text))
    }

    pub(super) fn state(&self) -> &'a StateDirectory {
        self.state
    }

    /// Writes the record, then the config: a config without its record couldn't be undone.
    pub(super) fn commit(&self, document: &Document<'_>, rewrite: Rewrite) -> Result<()> {
        let (text, record) = rewrite.apply(document, self.path.clone())?;
        let before: Option<BundleRecord> = self.state.bundle(self.name)?;
        self.state.write_bundle(self.name, &record)?;
        if let Err(error) = self.file.replace(&text) {
            match before {
                Some(before) => self.state.write_bundle(self.name, &before)?,
                None => self.state.remove_bundle(self.name)?,
            }
            return Err(error.into());
        }
        self.forget(|earlier| earlier != self.name)
    }

    /// Nothing of ours is in the config any more: it is written as it was, if it isn't.
    pub(super) fn leave(&self, document: &Document<'_>) -> Result<()> {
        if self.earlier.is_empty() {
            return Ok(());
        }
        self.file.replace(&document.apply(&[])?)?;
        self.forget(|_| true)
    }

    fn forget(&self, which: impl Fn(Digest) -> bool) -> Result<()> {
        for earlier in self.earlier.iter().copied().filter(|name| which(*name)) {
            self.state.remove_bundle(earlier)?;
        }
        Ok(())
    }
}

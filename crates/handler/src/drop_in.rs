//! Engines that read a file and others beside it, each of which can name handlers: CRI-O and podman.

use std::path::PathBuf;

use toml_edit::Item;

use crate::edit::{Edit, MARK, Source};
use crate::entry::{Unwanted, Wanted, is_runcrust, refuse_default};
use crate::error::HandlerError;
use crate::tables::{Toml, kind};

/// What of it is the engine's own.
pub(crate) struct DropIn {
    /// The table of handlers.
    pub(crate) runtimes: &'static [&'static str],
    /// Where the default one is named.
    pub(crate) default: &'static [&'static str],
    /// The programs that an entry names; `None`: it has another form than `form`.
    pub(crate) programs: fn(&Item) -> Option<Vec<&str>>,
    pub(crate) form: &'static str,
    /// Why programs that aren't runcrust are none of ours.
    pub(crate) foreign: fn(&[&str]) -> String,
    /// Writes the entry, which ran this program before.
    pub(crate) write:
        fn(&mut Toml<'_>, &Source, Wanted<'_>, Option<&str>) -> Result<(), HandlerError>,
    /// Removes what stood around the entry, in a file that is all ours or isn't.
    pub(crate) tidy: fn(&mut Toml<'_>, bool),
}

impl DropIn {
    /// The new text of the first file; the others are read beside it.
    pub(crate) fn install(
        &self,
        files: &[Source],
        wanted: Wanted<'_>,
    ) -> Result<Vec<Edit>, HandlerError> {
        let Some((source, others)) = files.split_first() else {
            return Ok(Vec::new());
        };
        for other in others {
            let toml = Toml::parse(&other.path, other.text.as_deref().unwrap_or_default())?;
            self.program(&toml, other, wanted.handler, |it| wanted.is_ours(it))?;
        }
        let text = source.text.as_deref().unwrap_or(MARK);
        let mut toml = Toml::parse(&source.path, text)?;
        let there = self.program(&toml, source, wanted.handler, |it| wanted.is_ours(it))?;
        (self.write)(&mut toml, source, wanted, there.as_deref())?;
        let edit = Edit::new(&source.path, source.text.as_deref(), toml.text());
        Ok(vec![edit])
    }

    /// The first file's new text, and the program that the handler ran.
    pub(crate) fn uninstall(
        &self,
        files: &[Source],
        unwanted: Unwanted<'_>,
    ) -> Result<Option<(Edit, PathBuf)>, HandlerError> {
        let Some((source, text)) = files
            .first()
            .and_then(|source| Some((source, source.text.as_deref()?)))
        else {
            return Ok(None);
        };
        let mut toml = Toml::parse(&source.path, text)?;
        let found = self.program(&toml, source, unwanted.handler, |it| unwanted.is_ours(it))?;
        let Some(program) = found else {
            return Ok(None);
        };
        for file in files {
            let toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or_default())?;
            let default = toml.get(self.default).and_then(Item::as_str);
            refuse_default(&file.path, self.default, default, unwanted.handler)?;
        }
        let is_our_file = text.starts_with(MARK);
        toml.remove(&[self.runtimes, &[unwanted.handler]].concat());
        (self.tidy)(&mut toml, is_our_file);
        let left = toml.text();
        let only_ours = is_our_file && left.trim().is_empty();
        let edit = Edit::maybe(&source.path, Some(text), (!only_ours).then_some(left));
        Ok(Some((edit, program.into())))
    }

    /// The names of the handlers that run runcrust.
    pub(crate) fn handlers(&self, files: &[Source]) -> Result<Vec<String>, HandlerError> {
        let mut names = Vec::new();
        for source in files {
            let toml = Toml::parse(&source.path, source.text.as_deref().unwrap_or_default())?;
            let runtimes = toml.get(self.runtimes).and_then(Item::as_table_like);
            let ours = runtimes.into_iter().flat_map(|it| it.iter());
            let ours = ours.filter(|(_, entry)| {
                let programs = (self.programs)(entry).unwrap_or_default();
                programs.into_iter().any(is_runcrust)
            });
            names.extend(ours.map(|(name, _)| name.to_owned()));
        }
        Ok(names)
    }

    /// What an entry of ours runs first; `None`: there is no entry.
    fn program(
        &self,
        toml: &Toml<'_>,
        source: &Source,
        handler: &str,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<Option<String>, HandlerError> {
        let keys = [self.runtimes, &[handler]].concat();
        let Some(entry) = toml.get(&keys) else {
            return Ok(None);
        };
        let programs =
            (self.programs)(entry).ok_or_else(|| kind(&source.path, &keys, self.form))?;
        match programs.as_slice() {
            [first, ..] if programs.iter().all(|it| is_ours(it)) => Ok(Some((*first).to_owned())),
            programs => Err(HandlerError::Foreign {
                path: source.path.clone(),
                handler: handler.to_owned(),
                what: (self.foreign)(programs),
            }),
        }
    }
}

#[cfg(test)]
mod tests;

//! Engines that read a file and others beside it, each of which can name handlers: CRI-O and podman.

use std::path::{Path, PathBuf};

use toml_edit::Item;

use crate::edit::{Edit, MARK, Source};
use crate::entry::{Handler, Unwanted, Wanted, refuse_default};
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
    pub(crate) write: Write,
    /// Removes what stood around the entry of a handler, in a file that is all ours or isn't.
    pub(crate) tidy: fn(&mut Toml<'_>, &str, bool),
}

/// Writes a handler into a file; the others are what the engine reads beside it.
type Write = fn(
    &mut Toml<'_>,
    &Source,
    others: &[Source],
    Wanted<'_>,
    there: Option<&str>,
) -> Result<(), HandlerError>;

/// A file with the handler, which is runcrust's.
struct Entry<'a> {
    path: &'a Path,
    text: &'a str,
    toml: Toml<'a>,
    /// What it runs first.
    program: String,
    /// A package keeps the file: the next version of it would bring the handler back.
    is_packages: bool,
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
        (self.write)(&mut toml, source, others, wanted, there.as_deref())?;
        let edit = Edit::new(&source.path, source.text.as_deref(), toml.text());
        Ok(vec![edit])
    }

    /// The new texts of the files that have the handler, and the program that it ran. Files of packages
    /// stay as they are.
    pub(crate) fn uninstall(
        &self,
        files: &[Source],
        unwanted: Unwanted<'_>,
    ) -> Result<(Vec<Edit>, Option<PathBuf>), HandlerError> {
        let mut found = self.found(files, unwanted)?;
        found.retain(|entry| !entry.is_packages);
        let Some(first) = found.first() else {
            return Ok((Vec::new(), None));
        };
        let program = PathBuf::from(&first.program);
        for file in files {
            let toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or_default())?;
            let default = toml.get(self.default).and_then(Item::as_str);
            refuse_default(&file.path, self.default, default, unwanted.handler)?;
        }
        let edits = found
            .into_iter()
            .map(|it| self.without(it, unwanted.handler));
        Ok((edits.collect(), Some(program)))
    }

    /// The files that keep the handler, for they are a package's.
    pub(crate) fn kept(
        &self,
        files: &[Source],
        unwanted: Unwanted<'_>,
    ) -> Result<Vec<String>, HandlerError> {
        let mut found = self.found(files, unwanted)?;
        found.retain(|entry| entry.is_packages);
        let told = found.into_iter().map(|entry| {
            let (path, handler) = (entry.path.display(), unwanted.handler);
            format!("{path} has handler {handler}, and stays: it is its package's")
        });
        Ok(told.collect())
    }

    /// The entries that are runcrust's; fails where there are only others.
    fn found<'a>(
        &self,
        files: &'a [Source],
        unwanted: Unwanted<'_>,
    ) -> Result<Vec<Entry<'a>>, HandlerError> {
        let (mut found, mut foreign) = (Vec::new(), None);
        for (at, source) in files.iter().enumerate() {
            let (path, Some(text)) = (source.path.as_path(), source.text.as_deref()) else {
                continue;
            };
            let toml = Toml::parse(path, text)?;
            match self.program(&toml, source, unwanted.handler, |it| unwanted.is_ours(it)) {
                Ok(None) => {}
                Ok(Some(program)) => found.push(Entry {
                    path,
                    text,
                    toml,
                    program,
                    // The first one is named.
                    is_packages: at > 0 && path.starts_with("/usr"),
                }),
                Err(error @ HandlerError::Foreign { .. }) => foreign = foreign.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        match foreign {
            Some(error) if found.is_empty() => Err(error),
            _ => Ok(found),
        }
    }

    fn without(&self, entry: Entry<'_>, handler: &str) -> Edit {
        let (mut toml, text) = (entry.toml, entry.text);
        let is_our_file = text.starts_with(MARK);
        toml.remove(&[self.runtimes, &[handler]].concat());
        (self.tidy)(&mut toml, handler, is_our_file);
        let mut left = toml.text();
        if is_our_file && !left.starts_with(MARK) {
            // It stood above a table, and went with that.
            left.insert_str(0, MARK);
        }
        let only_ours = is_our_file && left.trim() == MARK.trim();
        Edit::maybe(entry.path, Some(text), (!only_ours).then_some(left))
    }

    /// The handlers, one for each program that they name.
    pub(crate) fn entries(&self, files: &[Source]) -> Result<Vec<Handler>, HandlerError> {
        let mut found = Vec::new();
        for source in files {
            let toml = Toml::parse(&source.path, source.text.as_deref().unwrap_or_default())?;
            let runtimes = toml.get(self.runtimes).and_then(Item::as_table_like);
            for (name, entry) in runtimes.into_iter().flat_map(|it| it.iter()) {
                let programs = (self.programs)(entry).unwrap_or_default().into_iter();
                found.extend(programs.map(|program| Handler::new(&source.path, name, program)));
            }
        }
        Ok(found)
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

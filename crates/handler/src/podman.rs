//! podman: `[engine.runtimes]`, as `containers.conf(5)` has it.

use std::path::PathBuf;

use toml_edit::{Array, Item, Value};

use crate::change::{Edit, MARK, Source};
use crate::entry::{Unwanted, Wanted, refuse_default};
use crate::error::HandlerError;
use crate::tables::{Indent, Toml, give_header, kind, set};

const RUNTIMES: [&str; 2] = ["engine", "runtimes"];
const DEFAULT: [&str; 2] = ["engine", "runtime"];

/// The new text of the first file; the others are read beside it.
pub(crate) fn install(files: &[Source], wanted: Wanted<'_>) -> Result<Vec<Edit>, HandlerError> {
    let Some((source, others)) = files.split_first() else {
        return Ok(Vec::new());
    };
    for other in others {
        let toml = Toml::parse(&other.path, other.text.as_deref().unwrap_or_default())?;
        program(&toml, other, wanted.handler, |it| wanted.is_ours(it))?;
    }
    let text = source.text.as_deref().unwrap_or(MARK);
    let mut toml = Toml::parse(&source.path, text)?;
    let there = program(&toml, source, wanted.handler, |it| wanted.is_ours(it))?;
    if there.as_deref() != Some(wanted.program) {
        let is_new = toml.get(&RUNTIMES).is_none();
        let runtimes = toml.table(&RUNTIMES)?;
        if is_new {
            let mark = source.text.as_deref().map_or("", |_| MARK);
            give_header(runtimes, &format!("\n{mark}"));
        }
        let programs: Array = [wanted.program].into_iter().collect();
        let indent = Indent::of(runtimes).keys;
        set(runtimes, wanted.handler, programs, &indent);
    }
    let edit = Edit::new(&source.path, source.text.as_deref(), toml.text());
    Ok(vec![edit])
}

/// The first file's new text, and the program that the handler ran.
pub(crate) fn uninstall(
    files: &[Source],
    unwanted: Unwanted<'_>,
) -> Result<Option<(Edit, PathBuf)>, HandlerError> {
    let Some(source) = files.first() else {
        return Ok(None);
    };
    let Some(text) = source.text.as_deref() else {
        return Ok(None);
    };
    let mut toml = Toml::parse(&source.path, text)?;
    let found = program(&toml, source, unwanted.handler, |it| unwanted.is_ours(it))?;
    let Some(program) = found else {
        return Ok(None);
    };
    for file in files {
        let toml = Toml::parse(&file.path, file.text.as_deref().unwrap_or_default())?;
        let default = toml.get(&DEFAULT).and_then(Item::as_str);
        refuse_default(&file.path, &DEFAULT, default, unwanted.handler)?;
    }
    toml.remove(&[&RUNTIMES[..], &[unwanted.handler]].concat());
    let is_our_file = text.starts_with(MARK);
    if is_our_table(toml.get(&RUNTIMES), is_our_file) {
        toml.remove(&RUNTIMES);
    }
    let left = toml.text();
    let only_ours = is_our_file && left.trim().is_empty();
    let edit = Edit::maybe(&source.path, Some(text), (!only_ours).then_some(left));
    Ok(Some((edit, program.into())))
}

/// An empty table that [`install`] made.
fn is_our_table(item: Option<&Item>, is_our_file: bool) -> bool {
    let table = match item {
        Some(Item::Table(table)) => table,
        Some(Item::Value(Value::InlineTable(table))) => return table.is_empty(),
        _ => return false,
    };
    let prefix = table.decor().prefix().and_then(|prefix| prefix.as_str());
    let is_marked = prefix.is_some_and(|prefix| prefix.trim().ends_with(MARK.trim()));
    table.is_empty() && (is_marked || is_our_file)
}

/// podman runs the first of a list that exists.
fn program(
    toml: &Toml<'_>,
    source: &Source,
    handler: &str,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Option<String>, HandlerError> {
    let keys = [&RUNTIMES[..], &[handler]].concat();
    let Some(entry) = toml.get(&keys) else {
        return Ok(None);
    };
    let Some(programs) = entry.as_array() else {
        return Err(kind(&source.path, &keys, "a list of programs"));
    };
    let programs: Vec<&str> = programs.iter().filter_map(|value| value.as_str()).collect();
    match programs.as_slice() {
        [first, rest @ ..] if is_ours(first) && rest.iter().all(|it| is_ours(it)) => {
            Ok(Some((*first).to_owned()))
        }
        programs => Err(HandlerError::Foreign {
            path: source.path.clone(),
            handler: handler.to_owned(),
            what: format!("it runs {programs:?}"),
        }),
    }
}

#[cfg(test)]
mod tests;

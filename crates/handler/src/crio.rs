//! CRI-O: `[crio.runtime.runtimes.<handler>]`, as `crio.conf(5)` has it.

use std::path::PathBuf;

use toml_edit::Item;

use crate::change::{Edit, MARK, Source};
use crate::entry::{Unwanted, Wanted, refuse_default};
use crate::error::HandlerError;
use crate::tables::{Toml, give_header, kind, set};

const RUNTIMES: [&str; 3] = ["crio", "runtime", "runtimes"];
const DEFAULT: [&str; 3] = ["crio", "runtime", "default_runtime"];

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
    let keys = [&RUNTIMES[..], &[wanted.handler]].concat();
    let there = program(&toml, source, wanted.handler, |it| wanted.is_ours(it))?;
    let entry = toml.table(&keys)?;
    if there.is_none() {
        give_header(entry, "\n");
    }
    if there.as_deref() != Some(wanted.program) {
        set(entry, "runtime_path", wanted.program, "");
    }
    if there.is_none() {
        // CRI-O's own default is /run/<handler>, and /run/crust is the crust directory.
        let root = format!("/run/runcrust-{}", wanted.handler);
        set(entry, "runtime_root", root, "");
        set(entry, "runtime_type", "oci", "");
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
    let left = toml.text();
    let only_ours = text.starts_with(MARK) && left.trim().is_empty();
    let edit = Edit::maybe(&source.path, Some(text), (!only_ours).then_some(left));
    Ok(Some((edit, program.into())))
}

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
    let Some(table) = entry.as_table_like() else {
        return Err(kind(&source.path, &keys, "a table"));
    };
    let what = match table.get("runtime_path").and_then(Item::as_str) {
        Some(program) if is_ours(program) => return Ok(Some(program.to_owned())),
        Some(program) => format!("its runtime_path is {program:?}"),
        None => "it has no runtime_path".into(),
    };
    Err(HandlerError::Foreign {
        path: source.path.clone(),
        handler: handler.to_owned(),
        what,
    })
}

#[cfg(test)]
mod tests;

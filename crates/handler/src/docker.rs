//! docker: `runtimes` of `daemon.json`.

use std::path::PathBuf;

use crate::edit::{Edit, Source};
use crate::entry::{Unwanted, Wanted, is_runcrust, refuse_default};
use crate::error::HandlerError;
use crate::json::{NoObject, Object};

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// The file's new text.
pub(crate) fn install(source: &Source, wanted: Wanted<'_>) -> Result<Edit, HandlerError> {
    let text = match source.text.as_deref() {
        // dockerd takes an empty file for none.
        Some(text) if !text.trim().is_empty() => text,
        _ => "{}\n",
    };
    let path = serde_json::Value::from(wanted.program).to_string();
    let text = &without_null(source, text)?;
    let root = read(source, "", Object::parse(text))?;
    let Some(runtimes) = root.object(RUNTIMES) else {
        let text = root.with_member(RUNTIMES, |form| {
            form.object(wanted.handler, |form| form.object("path", |_| path))
        });
        return Ok(Edit::new(&source.path, source.text.as_deref(), text));
    };
    let runtimes = read(source, RUNTIMES, runtimes)?;
    let text = match handler(source, &runtimes, wanted.handler, |it| wanted.is_ours(it))? {
        None => runtimes.with_member(wanted.handler, |form| form.object("path", |_| path)),
        Some((_, program)) if program == wanted.program => text.to_owned(),
        Some((entry, _)) => entry.with_value("path", &path).unwrap_or_default(),
    };
    Ok(Edit::new(&source.path, source.text.as_deref(), text))
}

/// The file's new text, and the program that the handler ran.
pub(crate) fn uninstall(
    source: &Source,
    unwanted: Unwanted<'_>,
) -> Result<Option<(Edit, PathBuf)>, HandlerError> {
    let Some(text) = source
        .text
        .as_deref()
        .filter(|text| !text.trim().is_empty())
    else {
        return Ok(None);
    };
    let text_in_use = without_null(source, text)?;
    let root = read(source, "", Object::parse(&text_in_use))?;
    let Some(runtimes) = root.object(RUNTIMES) else {
        return Ok(None);
    };
    let runtimes = read(source, RUNTIMES, runtimes)?;
    let found = handler(source, &runtimes, unwanted.handler, |it| {
        unwanted.is_ours(it)
    })?;
    let Some((_, program)) = found else {
        return Ok(None);
    };
    let default = root
        .get(DEFAULT)
        .and_then(|it| serde_json::from_str(it).ok());
    let default: Option<String> = default;
    refuse_default(
        &source.path,
        &[DEFAULT],
        default.as_deref(),
        unwanted.handler,
    )?;
    // An empty object of runtimes says nothing.
    let left = if runtimes.len() == 1 {
        root.without(RUNTIMES)
    } else {
        runtimes.without(unwanted.handler)
    };
    let edit = Edit::maybe(&source.path, Some(text), left);
    Ok(Some((edit, program.into())))
}

/// The names of the runtimes that are runcrust. Go reads two objects of a name into one.
pub(crate) fn handlers(source: &Source) -> Result<Vec<String>, HandlerError> {
    let text = source.text.as_deref().unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let root = read(source, "", Object::parse(text))?;
    let mut names = Vec::new();
    for (_, runtimes) in root.objects().filter(|(name, _)| *name == RUNTIMES) {
        let ours = runtimes.objects().filter(|(_, entry)| {
            let path = entry.get("path");
            let path = path.and_then(|it| serde_json::from_str::<String>(it).ok());
            path.is_some_and(|path| is_runcrust(&path))
        });
        names.extend(ours.map(|(name, _)| name.to_owned()));
    }
    Ok(names)
}

/// Go reads a null as nothing.
fn without_null(source: &Source, text: &str) -> Result<String, HandlerError> {
    let root = read(source, "", Object::parse(text))?;
    let null = root.get(RUNTIMES).filter(|value| *value == "null");
    Ok(null
        .and_then(|_| root.without(RUNTIMES))
        .unwrap_or_else(|| text.to_owned()))
}

/// The entry of a handler of ours, and its program.
fn handler<'a>(
    source: &Source,
    runtimes: &Object<'a>,
    name: &str,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Option<(Object<'a>, String)>, HandlerError> {
    let Some(entry) = runtimes.object(name) else {
        return Ok(None);
    };
    let entry = read(source, &format!("{RUNTIMES}.{name}"), entry)?;
    let path = entry
        .get("path")
        .and_then(|it| serde_json::from_str(it).ok());
    let what = match path {
        Some(serde_json::Value::String(path)) if is_ours(&path) => return Ok(Some((entry, path))),
        Some(path) => format!("it runs {path}"),
        None => "it has no `path`".into(),
    };
    Err(HandlerError::Foreign {
        path: source.path.clone(),
        handler: name.to_owned(),
        what,
    })
}

fn read<'a>(
    source: &Source,
    key: &str,
    object: Result<Object<'a>, NoObject>,
) -> Result<Object<'a>, HandlerError> {
    let path = source.path.clone();
    object.map_err(|error| match error {
        NoObject::Syntax(line, message) => HandlerError::Syntax {
            path,
            line,
            message,
        },
        NoObject::Kind => HandlerError::Kind {
            path,
            key: if key.is_empty() { "the file" } else { key }.to_owned(),
            kind: "an object",
        },
    })
}

#[cfg(test)]
mod tests;

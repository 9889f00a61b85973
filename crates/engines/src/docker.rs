//! docker: `runtimes` of `daemon.json`.

use std::path::PathBuf;

use crate::edit::{Edit, Source};
use crate::entry::{Handler, Unwanted, Wanted, refuse_default};
use crate::error::HandlerError;
use crate::json::{NoObject, Object};
use crate::lines;

const RUNTIMES: &str = "runtimes";
const DEFAULT: &str = "default-runtime";

/// The file's new text.
pub(crate) fn install(source: &Source, wanted: Wanted<'_>) -> Result<Edit, HandlerError> {
    let path = serde_json::Value::from(wanted.program).to_string();
    let text = &null_as_empty(source, text(source).unwrap_or("{}\n"))?;
    let root = read(source, "", Object::parse(text))?;
    let Some(runtimes) = root.object(RUNTIMES) else {
        let text = root.with_member(RUNTIMES, |form| {
            form.object(wanted.handler, |form| form.object("path", |_| path))
        });
        return Ok(edit(source, &text));
    };
    let runtimes = read(source, RUNTIMES, runtimes)?;
    let text = match handler(source, &runtimes, wanted.handler, |it| wanted.is_ours(it))? {
        None => runtimes.with_member(wanted.handler, |form| form.object("path", |_| path)),
        Some((_, program)) if program == wanted.program => text.to_owned(),
        Some((entry, _)) => entry.with_value("path", &path).unwrap_or_default(),
    };
    Ok(edit(source, &text))
}

/// Returns the text that dockerd decodes: it passes over a byte order mark, and takes an empty file for none
/// (`getConflictFreeConfiguration`).
fn text(source: &Source) -> Option<&str> {
    let text = lines::without_bom(source.text.as_deref()?);
    (!text.trim().is_empty()).then_some(text)
}

fn edit(source: &Source, text: &str) -> Edit {
    let before = source.text.as_deref();
    let mark = lines::bom(before.unwrap_or_default());
    Edit::new(&source.path, before, format!("{mark}{text}"))
}

/// The file's new text, and the program that the handler ran; none where there was no handler.
pub(crate) fn uninstall(
    source: &Source,
    unwanted: Unwanted<'_>,
) -> Result<(Vec<Edit>, Option<PathBuf>), HandlerError> {
    const NOTHING: (Vec<Edit>, Option<PathBuf>) = (Vec::new(), None);
    let Some(text) = text(source) else {
        return Ok(NOTHING);
    };
    let text = &null_as_empty(source, text)?;
    let root = read(source, "", Object::parse(text))?;
    let Some(runtimes) = root.object(RUNTIMES) else {
        return Ok(NOTHING);
    };
    let runtimes = read(source, RUNTIMES, runtimes)?;
    let found = handler(source, &runtimes, unwanted.handler, |it| {
        unwanted.is_ours(it)
    })?;
    let Some((_, program)) = found else {
        return Ok(NOTHING);
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
    let edit = edit(source, &left.unwrap_or_default());
    Ok((vec![edit], Some(program.into())))
}

/// Notes where a reload doesn't take the handler away: dockerd keeps the runtimes that it has where the file
/// sets none (`reloadPlatform` in moby's `daemon/reload_unix.go`).
pub(crate) fn kept(edits: &[Edit]) -> Vec<String> {
    let sets_runtimes =
        |text: &str| matches!(Object::parse(text), Ok(root) if root.object(RUNTIMES).is_some());
    let text = edits.first().and_then(|edit| edit.after.as_deref());
    if text.is_none_or(|text| sets_runtimes(lines::without_bom(text))) {
        return Vec::new();
    }
    let note = "a running dockerd offers the runtime until it is restarted: a reload doesn't change its runtimes \
                where the file has no \"runtimes\"";
    vec![note.to_owned()]
}

/// The runtimes that are a program. Go reads two objects of a name into one.
pub(crate) fn entries(source: &Source) -> Result<Vec<Handler>, HandlerError> {
    let Some(text) = text(source) else {
        return Ok(Vec::new());
    };
    let root = read(source, "", Object::parse(text))?;
    let mut found = Vec::new();
    for (_, runtimes) in root.objects().filter(|(name, _)| *name == RUNTIMES) {
        found.extend(runtimes.objects().filter_map(|(name, entry)| {
            let program = entry.get("path")?;
            let program: String = serde_json::from_str(program).ok()?;
            Some(Handler::new(&source.path, name, &program))
        }));
    }
    Ok(found)
}

/// Go reads a null as nothing.
fn null_as_empty(source: &Source, text: &str) -> Result<String, HandlerError> {
    let root = read(source, "", Object::parse(text))?;
    let null = root.get(RUNTIMES).filter(|value| *value == "null");
    Ok(null
        .and_then(|_| root.with_value(RUNTIMES, "{}"))
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

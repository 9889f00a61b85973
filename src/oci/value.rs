//! Decodes single values: strings, ids and arrays.

use std::borrow::Cow;
use std::fmt::Arguments;

use serde_json::value::RawValue;

use super::DocumentError;
use super::json::Json;

/// Limit for the elements of an array. A mount namespace can't have more mounts by default
/// (`/proc/sys/fs/mount-max`), and no config has as many elements in its other arrays.
const MAX_ELEMENTS: usize = 100_000;

pub(super) fn wrong_type(
    json_path: Arguments<'_>,
    expected: &'static str,
    value: Json<'_>,
) -> DocumentError {
    let found = match value.text().bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    DocumentError::WrongType {
        json_path: json_path.to_string(),
        expected,
        found,
    }
}

/// Decodes the string at `json_path`. Fails if it contains a NUL character.
pub(super) fn string<'a>(
    value: Json<'a>,
    json_path: Arguments<'_>,
) -> Result<Cow<'a, str>, DocumentError> {
    let text = string_with_nul(value, json_path)?;
    if text.contains('\0') {
        return Err(DocumentError::Nul {
            json_path: json_path.to_string(),
        });
    }
    Ok(text)
}

/// Decodes the string at `json_path`, which may contain NUL characters. Only for strings that delegates don't use: in C
/// they would end at the first NUL.
pub(super) fn string_with_nul<'a>(
    value: Json<'a>,
    json_path: Arguments<'_>,
) -> Result<Cow<'a, str>, DocumentError> {
    let Some(quoted) = value.quoted() else {
        return Err(wrong_type(json_path, "a string", value));
    };
    decoded(quoted).map_err(|source| DocumentError::Text {
        json_path: json_path.to_string(),
        source,
    })
}

/// Decodes the escapes of a string without its quotes. Fails for an unpaired surrogate.
pub(super) fn decoded(quoted: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    if !quoted.contains('\\') {
        return Ok(Cow::Borrowed(quoted));
    }
    serde_json::from_str(&format!("\"{quoted}\"")).map(Cow::Owned)
}

/// Returns the part of an undecoded string before its first NUL character, where it ends in C; `None` if there is no
/// NUL.
pub(super) fn before_nul(quoted: &str) -> Option<&str> {
    let mut at = 0;
    while let Some(next) = quoted.get(at..)?.find('\\') {
        at += next;
        if quoted[at..].starts_with("\\u0000") {
            return Some(&quoted[..at]);
        }
        // Skips the backslash and the escaped character, which is ASCII.
        at += 2;
    }
    None
}

/// Decodes the user or group id at `json_path`.
pub(super) fn id(value: Json<'_>, json_path: Arguments<'_>) -> Result<u32, DocumentError> {
    serde_json::from_str(value.text())
        .map_err(|_| wrong_type(json_path, "a number from 0 to 4294967295", value))
}

/// Returns the elements of the array at `json_path`.
pub(super) fn elements<'a>(
    value: Json<'a>,
    json_path: Arguments<'_>,
) -> Result<Vec<Json<'a>>, DocumentError> {
    if !value.is_array() {
        return Err(wrong_type(json_path, "an array", value));
    }
    let elements: Vec<_> = value.elements().take(MAX_ELEMENTS + 1).collect();
    if elements.len() > MAX_ELEMENTS {
        return Err(DocumentError::TooMany {
            json_path: json_path.to_string(),
            limit: MAX_ELEMENTS,
        });
    }
    Ok(elements)
}

/// Checks that `text` is exactly one JSON value.
pub(super) fn check_json(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<&RawValue>(text).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_c_string_ends_at_its_first_nul() {
        for (quoted, before) in [
            (r"a\u0000b", Some("a")),
            (r"\u0000", Some("")),
            (r#"\\\"\u00e9\u0000\u0000"#, Some(r#"\\\"\u00e9"#)),
            (r"\\u0000", None),
            (r"\\\\u0000x", None),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(before_nul(quoted), before, "{quoted}");
        }
    }
}

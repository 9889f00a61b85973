//! Decodes single values: strings, ids, arrays, and maps whose keys are data.

use std::borrow::Cow;
use std::fmt::Arguments;

use serde_json::value::RawValue;

use super::DocumentError;
use super::json::Json;

/// The most elements of a list that are kept: more mounts than that a mount namespace can't have
/// (`/proc/sys/fs/mount-max`), and of the other lists no config has as many.
const MOST_ELEMENTS: usize = 100_000;

pub(super) fn wrong_type(
    place: Arguments<'_>,
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
        place: place.to_string(),
        expected,
        found,
    }
}

/// The text of the string `value`, which is at `place`.
pub(super) fn string<'a>(
    value: Json<'a>,
    place: Arguments<'_>,
) -> Result<Cow<'a, str>, DocumentError> {
    let text = own_string(value, place)?;
    if text.contains('\0') {
        return Err(DocumentError::Nul {
            place: place.to_string(),
        });
    }
    Ok(text)
}

/// The same of a string that means nothing to a delegate, which may read as much of it as it likes.
pub(super) fn own_string<'a>(
    value: Json<'a>,
    place: Arguments<'_>,
) -> Result<Cow<'a, str>, DocumentError> {
    let Some(quoted) = value.quoted() else {
        return Err(wrong_type(place, "a string", value));
    };
    decoded(quoted).map_err(|source| DocumentError::Text {
        place: place.to_string(),
        source,
    })
}

/// Returns the text of a quoted string without its escapes. Fails for half a surrogate pair.
pub(super) fn decoded(quoted: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    if !quoted.contains('\\') {
        return Ok(Cow::Borrowed(quoted));
    }
    serde_json::from_str(&format!("\"{quoted}\"")).map(Cow::Owned)
}

/// Returns the text of a quoted string before its first NUL character, where a string ends in C; `None` if it has none.
pub(super) fn before_nul(quoted: &str) -> Option<&str> {
    let mut at = 0;
    while let Some(next) = quoted.get(at..)?.find('\\') {
        at += next;
        if quoted[at..].starts_with("\\u0000") {
            return Some(&quoted[..at]);
        }
        // The escaped character: an ASCII one.
        at += 2;
    }
    None
}

/// The user or group id `value`, which is at `place`.
pub(super) fn id(value: Json<'_>, place: Arguments<'_>) -> Result<u32, DocumentError> {
    serde_json::from_str(value.text())
        .map_err(|_| wrong_type(place, "a number from 0 to 4294967295", value))
}

/// The elements of the array `value`, which is at `place`.
pub(super) fn elements<'a>(
    value: Json<'a>,
    place: Arguments<'_>,
) -> Result<Vec<Json<'a>>, DocumentError> {
    if !value.is_array() {
        return Err(wrong_type(place, "an array", value));
    }
    let elements: Vec<_> = value.elements().take(MOST_ELEMENTS + 1).collect();
    if elements.len() > MOST_ELEMENTS {
        return Err(DocumentError::TooMany {
            place: place.to_string(),
            most: MOST_ELEMENTS,
        });
    }
    Ok(elements)
}

/// Whether `text` is one JSON value and nothing else.
pub(super) fn check(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<&RawValue>(text).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_of_cs_ends_at_its_first_nul() {
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

//! Single JSON values: strings, arrays, maps whose keys are data.

use std::borrow::Cow;
use std::fmt::{self, Arguments};
use std::ops::Range;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::DocumentError;

/// What RFC 8259 calls white space; Rust's notion is wider.
pub(super) const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

pub(super) fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

pub(super) fn wrong_type(
    place: Arguments<'_>,
    expected: &'static str,
    text: &str,
) -> DocumentError {
    let found = match text.bytes().next() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        Some(b'-' | b'0'..=b'9') => "a number",
        _ => "no JSON",
    };
    DocumentError::WrongType {
        place: place.to_string(),
        expected,
        found,
    }
}

/// The text of the string `raw`, which is at `place`.
pub(super) fn string<'a>(
    raw: &'a RawValue,
    place: Arguments<'_>,
) -> Result<Cow<'a, str>, DocumentError> {
    let text = raw.get();
    let Some(inner) = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
    else {
        return Err(wrong_type(place, "a string", text));
    };
    if !inner.contains('\\') {
        return Ok(Cow::Borrowed(inner));
    }
    serde_json::from_str(text)
        .map(Cow::Owned)
        .map_err(|source| DocumentError::Text {
            place: place.to_string(),
            source,
        })
}

/// The user or group id `raw`, which is at `place`.
pub(super) fn id(raw: &RawValue, place: Arguments<'_>) -> Result<u32, DocumentError> {
    serde_json::from_str(raw.get())
        .map_err(|_| wrong_type(place, "a number from 0 to 4294967295", raw.get()))
}

/// The elements of the array `raw`, which is at `place`.
pub(super) fn elements<'a>(
    raw: &'a RawValue,
    place: Arguments<'_>,
) -> Result<Vec<&'a RawValue>, DocumentError> {
    if !raw.get().starts_with('[') {
        return Err(wrong_type(place, "an array", raw.get()));
    }
    serde_json::from_str(raw.get()).map_err(DocumentError::Syntax)
}

/// The text of a key; none where it is half a surrogate pair, which no key of ours has.
pub(super) fn key_text(raw: &RawValue) -> Option<Cow<'_, str>> {
    string(raw, format_args!("")).ok()
}

/// One value of a map of strings whose keys are data: exact, and only once.
pub(super) fn map_value<'a>(
    raw: &'a RawValue,
    key: &str,
    place: Arguments<'_>,
) -> Result<Option<&'a RawValue>, DocumentError> {
    if !raw.get().starts_with('{') {
        return Err(wrong_type(place, "an object", raw.get()));
    }
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    let found = Lookup { key }
        .deserialize(&mut deserializer)
        .map_err(DocumentError::Syntax)?;
    match found {
        (value, false) => Ok(value.filter(|raw| !is_null(raw))),
        (_, true) => Err(DocumentError::Duplicate {
            place: place.to_string(),
            key: key.to_owned(),
        }),
    }
}

struct Lookup<'k> {
    key: &'k str,
}

impl<'de> DeserializeSeed<'de> for Lookup<'_> {
    type Value = (Option<&'de RawValue>, bool);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Lookup<'_> {
    type Value = (Option<&'de RawValue>, bool);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut value, mut twice) = (None, false);
        while let Some(key) = map.next_key::<&'de RawValue>()? {
            if key_text(key).is_some_and(|key| key == self.key) {
                twice |= value.replace(map.next_value()?).is_some();
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok((value, twice))
    }
}

/// Whether `text` is one JSON value and nothing else.
pub(super) fn check(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<&RawValue>(text).map(drop)
}

/// The bytes that `raw` takes within `text`, which it was read from.
pub(super) fn span(text: &str, raw: &RawValue) -> Range<usize> {
    // Addresses only, nothing is read through them: `raw` is borrowed from `text`.
    let start = raw.get().as_ptr().addr().wrapping_sub(text.as_ptr().addr());
    start..start.wrapping_add(raw.get().len())
}

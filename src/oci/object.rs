//! Reads one JSON object: the values of its known keys, and the position for new members.

use std::fmt::{self, Arguments};

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::DocumentError;
use super::error::ParserFamily;
use super::json::{Json, WHITE_SPACE};
use super::value::{before_nul, decoded, wrong_type};

/// Largest number of known keys of an object.
const MAX_KEYS: usize = 7;

/// The known keys of an object, that is, those that runcrust reads. All are ASCII, in lower or camel case.
pub(super) type Keys = &'static [&'static str];

/// An object, read one level deep.
#[derive(Debug)]
pub(super) struct Object<'a> {
    keys: Keys,
    /// The value of each key, by its index in `keys`.
    values: [Option<Json<'a>>; MAX_KEYS],
    /// The last member's value, known or not.
    last: Option<Json<'a>>,
    is_ambiguous: bool,
}

impl<'a> Object<'a> {
    /// Parses the object that is the first JSON value of `text`. Returns its text and the object. Checks the syntax and
    /// reads the members in one pass.
    pub(super) fn parse_first(
        text: &'a str,
        keys: Keys,
        json_path: Arguments<'_>,
    ) -> Result<(Json<'a>, Self), DocumentError> {
        let start = text.len() - text.trim_start_matches(WHITE_SPACE).len();
        if !text[start..].starts_with('{') {
            let value = Json::parse_first(text).map_err(DocumentError::Syntax)?;
            return Err(wrong_type(json_path, "an object", value));
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let object = reader
            .deserialize_map(ObjectVisitor(keys))
            .map_err(DocumentError::Syntax)?;
        let from = object.last.map_or(start, |last| last.span(text).end);
        // Only white space can be between the last value and the brace.
        let end = text[from..]
            .find('}')
            .map_or(text.len(), |brace| from + brace + 1);
        Ok((Json::from_checked(&text[start..end]), object))
    }

    /// Reads the object at `json_path`. Fails if `value` isn't an object.
    pub(super) fn read(
        value: Json<'a>,
        keys: Keys,
        json_path: Arguments<'_>,
    ) -> Result<Self, DocumentError> {
        if value.is_object() {
            Ok(Self::read_or_empty(value, keys))
        } else {
            Err(wrong_type(json_path, "an object", value))
        }
    }

    /// Reads an object. Returns an empty one if `value` isn't an object.
    pub(super) fn read_or_empty(value: Json<'a>, keys: Keys) -> Self {
        let mut object = Self::empty(keys);
        for (key, value) in value.members() {
            object.add_member(key, value);
        }
        object
    }

    const fn empty(keys: Keys) -> Self {
        Self {
            keys,
            values: [None; MAX_KEYS],
            last: None,
            is_ambiguous: false,
        }
    }

    fn add_member(&mut self, key: Json<'a>, value: Json<'a>) {
        self.last = Some(value);
        match match_key(key, self.keys) {
            Some((at, KeyMatch::Exact)) => self.set(at, value),
            Some((_, KeyMatch::OnlyFor(_))) => self.is_ambiguous = true,
            None => {}
        }
    }

    pub(super) const fn keys(&self) -> Keys {
        self.keys
    }

    /// Returns the value of a known key. `null` counts as missing, as in Go.
    pub(super) fn get(&self, key: &str) -> Option<Json<'a>> {
        self.get_or_null(key).filter(|value| !value.is_null())
    }

    /// Returns the value of a known key, even if it is `null`.
    pub(super) fn get_or_null(&self, key: &str) -> Option<Json<'a>> {
        let at = self.keys.iter().position(|known| *known == key)?;
        self.values[at]
    }

    /// Returns the value of the last member, known or not.
    pub(super) const fn last(&self) -> Option<Json<'a>> {
        self.last
    }

    /// Returns whether parsers may read the object differently: a known key occurs twice, or a key is equal to a known
    /// one for some parsers only.
    pub(super) const fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Sets the value of a key. For a duplicate key the last value counts, as in Go. In Go `null` unsets an array or an
    /// object, but leaves any other value unchanged.
    fn set(&mut self, at: usize, value: Json<'a>) {
        let earlier = self.values[at];
        self.is_ambiguous |= earlier.is_some();
        let is_unaffected = |earlier: Json<'_>| value.is_null() && earlier.is_scalar();
        if !earlier.is_some_and(is_unaffected) {
            self.values[at] = Some(value);
        }
    }
}

/// A serde visitor that reads an [`Object`] with these keys.
struct ObjectVisitor(Keys);

impl<'a> Visitor<'a> for ObjectVisitor {
    type Value = Object<'a>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Object<'a>, A::Error> {
        let mut object = Object::empty(self.0);
        while let Some((key, value)) = members.next_entry::<&RawValue, &RawValue>()? {
            object.add_member(
                Json::from_checked(key.get()),
                Json::from_checked(value.get()),
            );
        }
        Ok(object)
    }
}

/// The way in which a key matches a known key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyMatch {
    /// The key is equal for every parser.
    Exact,
    /// The key is only equal for this family of parsers.
    OnlyFor(ParserFamily),
}

/// Finds the known key that `key` is, or that some parsers take it for. Returns its index in `keys`.
pub(super) fn match_key(key: Json<'_>, keys: Keys) -> Option<(usize, KeyMatch)> {
    let quoted = key.quoted()?;
    if let Some(cut) = before_nul(quoted) {
        let (at, _) = position(cut, keys)?;
        return Some((at, KeyMatch::OnlyFor(ParserFamily::C)));
    }
    let (at, is_exact) = position(quoted, keys)?;
    let key_match = if is_exact {
        KeyMatch::Exact
    } else {
        KeyMatch::OnlyFor(ParserFamily::Go)
    };
    Some((at, key_match))
}

/// Returns the index of the known key that Go matches with an undecoded key, and whether they are equal. Returns `None`
/// for an unpaired surrogate, which no known key contains.
fn position(quoted: &str, keys: Keys) -> Option<(usize, bool)> {
    let key = decoded(quoted).ok()?;
    let at = keys.iter().position(|known| folds_to(&key, known))?;
    Some((at, key == keys[at]))
}

/// Returns whether Go's encoding/json takes `key` for the field `known`. It uses simple Unicode case folding, which for
/// ASCII letters adds U+017F (long s) and U+212A (Kelvin sign).
fn folds_to(key: &str, known: &str) -> bool {
    if key.is_ascii() {
        return key.eq_ignore_ascii_case(known);
    }
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    let known = known.chars().map(|letter| letter.to_ascii_lowercase());
    key.chars().map(fold).eq(known)
}

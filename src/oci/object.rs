//! One JSON object: the values of the keys we care about, and where a new one would go.

use std::fmt::{self, Arguments};

use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::DocumentError;
use super::error::ParserFamily;
use super::json::{Json, WHITE_SPACE};
use super::value::{before_nul, decoded, wrong_type};

/// The most keys of one object that we care about.
const MOST: usize = 7;

/// The keys of an object that we care about; each in lower case letters or camel case, ASCII.
pub(super) type Keys = &'static [&'static str];

/// An object, read one level deep.
#[derive(Debug)]
pub(super) struct Object<'a> {
    keys: Keys,
    values: [Option<Json<'a>>; MOST],
    /// The value before the closing brace, whatever its key.
    last: Option<Json<'a>>,
    is_odd: bool,
}

impl<'a> Object<'a> {
    /// The object that is the first value of `text`, with what is read of it: both come of the one pass in which
    /// the text is checked.
    pub(super) fn first_of(
        text: &'a str,
        keys: Keys,
        place: Arguments<'_>,
    ) -> Result<(Json<'a>, Self), DocumentError> {
        let start = text.len() - text.trim_start_matches(WHITE_SPACE).len();
        if !text[start..].starts_with('{') {
            let value = Json::first_of(text).map_err(DocumentError::Syntax)?;
            return Err(wrong_type(place, "an object", value));
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let object = reader
            .deserialize_map(Read(keys))
            .map_err(DocumentError::Syntax)?;
        let from = object.last.map_or(start, |last| last.span(text).end);
        // What it leaves out here is white space.
        let end = text[from..]
            .find('}')
            .map_or(text.len(), |brace| from + brace + 1);
        Ok((Json::of(&text[start..end]), object))
    }

    /// Reads the object `value`, which is at `place`.
    pub(super) fn read(
        value: Json<'a>,
        keys: Keys,
        place: Arguments<'_>,
    ) -> Result<Self, DocumentError> {
        if value.is_object() {
            Ok(Self::of(value, keys))
        } else {
            Err(wrong_type(place, "an object", value))
        }
    }

    /// The same; what is no object is an empty one.
    pub(super) fn of(value: Json<'a>, keys: Keys) -> Self {
        let mut object = Self::empty(keys);
        for (key, value) in value.members() {
            object.take(key, value);
        }
        object
    }

    const fn empty(keys: Keys) -> Self {
        Self {
            keys,
            values: [None; MOST],
            last: None,
            is_odd: false,
        }
    }

    /// The next member.
    fn take(&mut self, key: Json<'a>, value: Json<'a>) {
        self.last = Some(value);
        match match_key(key, self.keys) {
            Some((at, KeyMatch::Exact)) => self.note(at, value),
            Some((_, KeyMatch::OnlyFor(_))) => self.is_odd = true,
            None => {}
        }
    }

    /// The keys cared for.
    pub(super) const fn keys(&self) -> Keys {
        self.keys
    }

    /// The value of `key`, which must be one of the keys cared for; `null` counts as absent, as
    /// it does in Go.
    pub(super) fn get(&self, key: &str) -> Option<Json<'a>> {
        self.get_or_null(key).filter(|value| !value.is_null())
    }

    /// The value of `key`, and be it `null`.
    pub(super) fn get_or_null(&self, key: &str) -> Option<Json<'a>> {
        let at = self.keys.iter().position(|known| *known == key)?;
        self.values[at]
    }

    /// The value before the closing brace.
    pub(super) const fn last(&self) -> Option<Json<'a>> {
        self.last
    }

    /// Whether there are more readings of it than ours: a key stands twice, or is spelt otherwise.
    pub(super) const fn is_odd(&self) -> bool {
        self.is_odd
    }

    /// Of a key that stands twice the last value counts, as in Go, where `null` unsets an array or
    /// an object and leaves anything else as it was.
    fn note(&mut self, at: usize, value: Json<'a>) {
        let earlier = self.values[at];
        self.is_odd |= earlier.is_some();
        let stays = |earlier: Json<'_>| value.is_null() && earlier.is_scalar();
        if !earlier.is_some_and(stays) {
            self.values[at] = Some(value);
        }
    }
}

/// An object of these keys, while its text is read.
struct Read(Keys);

impl<'a> Visitor<'a> for Read {
    type Value = Object<'a>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut members: A) -> Result<Object<'a>, A::Error> {
        let mut object = Object::empty(self.0);
        while let Some((key, value)) = members.next_entry::<&RawValue, &RawValue>()? {
            object.take(Json::of(key.get()), Json::of(value.get()));
        }
        Ok(object)
    }
}

/// How a key is one of those cared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyMatch {
    /// It is the same.
    Exact,
    /// It is taken for it by this kind of reader.
    OnlyFor(ParserFamily),
}

/// The number of the key, of those cared for, that `key` is or may be taken for.
pub(super) fn match_key(key: Json<'_>, keys: Keys) -> Option<(usize, KeyMatch)> {
    let quoted = key.quoted()?;
    if let Some(cut) = before_nul(quoted) {
        let (at, _) = position(cut, keys)?;
        return Some((at, KeyMatch::OnlyFor(ParserFamily::C)));
    }
    let (at, is_same) = position(quoted, keys)?;
    let key_match = if is_same {
        KeyMatch::Exact
    } else {
        KeyMatch::OnlyFor(ParserFamily::Go)
    };
    Some((at, key_match))
}

/// None where it is half a surrogate pair, which no key of ours has.
fn position(quoted: &str, keys: Keys) -> Option<(usize, bool)> {
    let key = decoded(quoted).ok()?;
    let at = keys.iter().position(|known| folds_to(&key, known))?;
    Some((at, key == keys[at]))
}

/// Whether Go's encoding/json takes `key` for the field `known`: simple Unicode folding, which
/// adds two letters to ASCII, U+017F (long s) and U+212A (the kelvin sign).
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

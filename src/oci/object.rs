//! One JSON object: the values of the keys we care about, and where a new one would go.

use std::fmt::Arguments;

use super::DocumentError;
use super::error::Reader;
use super::json::Json;
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
        let mut object = Self {
            keys,
            values: [None; MOST],
            last: None,
            is_odd: false,
        };
        for (key, value) in value.members() {
            object.last = Some(value);
            match meant(key, keys) {
                Some((at, Likeness::Same)) => object.note(at, value),
                Some((_, Likeness::For(_))) => object.is_odd = true,
                None => {}
            }
        }
        object
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

/// How a key is one of those cared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Likeness {
    /// It is the same.
    Same,
    /// It is taken for it by this kind of reader.
    For(Reader),
}

/// The number of the key, of those cared for, that `key` is or may be taken for.
pub(super) fn meant(key: Json<'_>, keys: Keys) -> Option<(usize, Likeness)> {
    let quoted = key.quoted()?;
    if let Some(cut) = before_nul(quoted) {
        let (at, _) = position(cut, keys)?;
        return Some((at, Likeness::For(Reader::C)));
    }
    let (at, is_same) = position(quoted, keys)?;
    let likeness = if is_same {
        Likeness::Same
    } else {
        Likeness::For(Reader::Go)
    };
    Some((at, likeness))
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
    let fold = |letter: char| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    // Most keys differ in length or in the first letter.
    key.len() >= known.len()
        && key
            .chars()
            .map(fold)
            .eq(known.chars().map(|letter| letter.to_ascii_lowercase()))
}

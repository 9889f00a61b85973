//! One JSON object: the values of the keys we care about, and where a new one would go.

use std::fmt::{self, Arguments};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::DocumentError;
use super::value::{WHITE_SPACE, is_null, key_text, wrong_type};

/// The most keys of one object that we care about.
const MOST: usize = 6;

/// The keys of an object that we care about; each in lower case letters or camel case, ASCII.
pub(super) type Keys = &'static [&'static str];

/// An object, read one level deep.
#[derive(Debug)]
pub(super) struct Object<'a> {
    keys: Keys,
    values: [Option<&'a RawValue>; MOST],
    /// The value before the closing brace, whatever its key.
    last: Option<&'a RawValue>,
    trouble: Option<Trouble>,
}

/// Found while the object was read; it becomes an error once the place is known.
#[derive(Debug)]
enum Trouble {
    Case { key: String, meant: &'static str },
    Duplicate { key: &'static str },
}

impl<'a> Object<'a> {
    /// Reads the object `raw`, which is at `place`.
    pub(super) fn read(
        raw: &'a RawValue,
        keys: Keys,
        place: Arguments<'_>,
    ) -> Result<Self, DocumentError> {
        let mut deserializer = serde_json::Deserializer::from_str(raw.get());
        Self::read_from(&mut deserializer, raw.get(), keys, place)
    }

    /// Reads the first value of `text`, and leaves what comes after it alone.
    pub(super) fn read_first(text: &'a str, keys: Keys) -> Result<Self, DocumentError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        Self::read_from(&mut deserializer, text, keys, format_args!("the document"))
    }

    fn read_from(
        deserializer: &mut serde_json::Deserializer<serde_json::de::StrRead<'a>>,
        text: &str,
        keys: Keys,
        place: Arguments<'_>,
    ) -> Result<Self, DocumentError> {
        let text = text.trim_start_matches(WHITE_SPACE);
        if !text.is_empty() && !text.starts_with('{') {
            return Err(wrong_type(place, "an object", text));
        }
        let object = Seed { keys }
            .deserialize(deserializer)
            .map_err(DocumentError::Syntax)?;
        match object.trouble {
            None => Ok(object),
            Some(Trouble::Case { key, meant }) => Err(DocumentError::Case {
                place: place.to_string(),
                key,
                meant,
            }),
            Some(Trouble::Duplicate { key }) => Err(DocumentError::Duplicate {
                place: place.to_string(),
                key: key.to_owned(),
            }),
        }
    }

    /// The value of `key`, which must be one of the keys cared for; `null` counts as absent, as
    /// it does in Go.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.get_or_null(key).filter(|raw| !is_null(raw))
    }

    /// The value of `key`, and be it `null`.
    pub(super) fn get_or_null(&self, key: &str) -> Option<&'a RawValue> {
        let at = self.keys.iter().position(|known| *known == key)?;
        self.values[at]
    }

    /// The value before the closing brace.
    pub(super) const fn last(&self) -> Option<&'a RawValue> {
        self.last
    }

    fn note(&mut self, key: &str, value: &'a RawValue) {
        let Some(at) = self.keys.iter().position(|known| folds_to(key, known)) else {
            return;
        };
        let known = self.keys[at];
        if key != known {
            self.trouble.get_or_insert_with(|| Trouble::Case {
                key: key.to_owned(),
                meant: known,
            });
        } else if self.values[at].replace(value).is_some() {
            self.trouble
                .get_or_insert(Trouble::Duplicate { key: known });
        }
    }
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

/// Reads an object; what isn't cared for is skipped, without a look at its type or its depth.
struct Seed {
    keys: Keys,
}

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Object<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let mut object = Object {
            keys: self.keys,
            values: [None; MOST],
            last: None,
            trouble: None,
        };
        // Raw: a key with half a surrogate pair is none of ours, and no reason to refuse.
        while let Some(key) = map.next_key::<&'de RawValue>()? {
            let value = map.next_value::<&'de RawValue>()?;
            if let Some(key) = key_text(key) {
                object.note(&key, value);
            }
            object.last = Some(value);
        }
        Ok(object)
    }
}

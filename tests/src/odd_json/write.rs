//! Writes JSON in unusual forms.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::Template;
use crate::random::Random;

/// The places that may change, as JSON pointers (RFC 6901).
#[derive(Debug, Clone, Copy)]
pub struct EditablePlaces<'a> {
    /// Arrays and objects to which something may be appended.
    pub ends: &'a [&'a str],
    /// Values that may be replaced.
    pub values: &'a [&'a str],
}

/// White space between two tokens.
const SPACES: [&str; 8] = ["", "", "", " ", "\t", "\n", "\r\n  ", " \n\n\t "];

/// Values of unknown fields.
const UNKNOWN: [&str; 14] = [
    "1e2",
    "-0.0E-0",
    "1E+400",
    "123456789012345678901234567890",
    r#""\u0041\/\b\f\u00e9""#,
    r#""\ud83d\ude00 \ud800 alone""#,
    r#""\u0000""#,
    "\"ü€😀\u{7f}\u{2028}\"",
    r#"{"": {"" :[ ]}, "a":1,"a" :2}"#,
    "[ [ ] ,{ } , null,true , false ]",
    "null",
    r#"{"mounts":[{"source":"/etc"}],"hooks":{"createRuntime":[]}}"#,
    r#""},\"mounts\":[""#,
    "0.1",
];

/// Objects whose keys are not fixed. Unknown fields are not added to them, because any key has a meaning there.
const MAPS: [&str; 4] = [
    "/annotations",
    "/linux/netDevices",
    "/linux/resources/unified",
    "/linux/sysctl",
];

/// Writes a value with shuffled keys, unknown fields in every object, white space between tokens and unnecessary
/// escapes. The same seed gives the same text.
pub fn write(value: &Value, places: &EditablePlaces<'_>, seed: u64) -> Template {
    let mut writer = Writer {
        random: Random::new(seed),
        places: *places,
        unknown: 0,
        template: Template::new(),
    };
    writer.template.push("\n\t \r\n");
    writer.value(value, "");
    let missing = places.ends.iter().chain(places.values);
    for pointer in missing {
        let found = writer
            .template
            .places
            .iter()
            .any(|(name, _)| name == pointer);
        assert!(found, "{pointer} isn't in the value");
    }
    writer.template
}

struct Writer<'a> {
    random: Random,
    places: EditablePlaces<'a>,
    unknown: usize,
    template: Template,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, pointer: &str) {
        match value {
            Value::Object(object) => self.object(object, pointer),
            Value::Array(elements) => {
                self.template.push("[");
                for (index, element) in elements.iter().enumerate() {
                    self.before(index > 0);
                    self.value(element, &format!("{pointer}/{index}"));
                }
                self.end(pointer, "]");
            }
            other => {
                let text = match other {
                    Value::String(text) => self.string(text),
                    other => other.to_string(),
                };
                if self.places.values.contains(&pointer) {
                    self.template.push_place(pointer, text);
                } else {
                    self.template.push(&text);
                }
            }
        }
    }

    fn object(&mut self, object: &Map<String, Value>, pointer: &str) {
        let mut keys: Vec<Option<&String>> = object.keys().map(Some).collect();
        if !MAPS.contains(&pointer) {
            keys.push(None);
        }
        // Fisher–Yates shuffle.
        for last in (1..keys.len()).rev() {
            keys.swap(last, self.random.below(last + 1));
        }
        // If the last key's value is an object or array, an unknown field is moved after it. Otherwise the ends of the
        // value and of this object would be adjacent, and the two places could not be told apart.
        let nested = |key: Option<&String>| key.is_some_and(|key| !is_scalar(&object[key]));
        if keys.last().copied().is_some_and(nested)
            && let Some(unknown) = keys.iter().position(Option::is_none)
        {
            let last = keys.len() - 1;
            keys.swap(unknown, last);
        }
        self.template.push("{");
        for (index, key) in keys.into_iter().enumerate() {
            self.before(index > 0);
            if let Some(key) = key {
                let text = self.string(key);
                self.template.push(&text);
                self.colon();
                self.value(&object[key], &format!("{pointer}/{key}"));
            } else {
                let value = UNKNOWN[self.unknown % UNKNOWN.len()];
                self.template
                    .push(&format!("\"x-unknown-{}\"", self.unknown));
                self.unknown += 1;
                self.colon();
                self.template.push(value);
            }
        }
        self.end(pointer, "}");
    }

    /// Writes the comma and the white space before an element or a member.
    fn before(&mut self, comma: bool) {
        if comma {
            self.space();
            self.template.push(",");
        }
        self.space();
    }

    fn colon(&mut self) {
        self.space();
        self.template.push(":");
        self.space();
    }

    fn end(&mut self, pointer: &str, bracket: &str) {
        if self.places.ends.contains(&pointer) {
            let space = *self.random.pick(&SPACES);
            self.template.push_place(pointer, space.to_owned());
        } else {
            self.space();
        }
        self.template.push(bracket);
    }

    fn space(&mut self) {
        let space = *self.random.pick(&SPACES);
        self.template.push(space);
    }

    fn string(&mut self, text: &str) -> String {
        let mut json = String::from("\"");
        for letter in text.chars() {
            let escaped = match letter {
                '"' | '\\' => format!("\\{letter}"),
                '/' if self.random.once_in(2) => "\\/".to_owned(),
                '\0'..' ' => format!("\\u{:04x}", u32::from(letter)),
                _ if self.random.once_in(8) => units(letter),
                other => other.to_string(),
            };
            json.push_str(&escaped);
        }
        json.push('"');
        json
    }
}

fn is_scalar(value: &Value) -> bool {
    !value.is_object() && !value.is_array()
}

/// Writes a character as one `\u` escape, or as two if it does not fit in 16 bits.
fn units(letter: char) -> String {
    let mut text = String::new();
    for unit in letter.encode_utf16(&mut [0; 2]) {
        // Writing to a String does not fail.
        let _ = write!(text, "\\u{unit:04X}");
    }
    text
}

//! Unusual but valid JSON with named places that may change, to check that nothing else changes.

mod write;

use std::collections::BTreeMap;

use serde_json::Value;

pub use write::{EditablePlaces, write};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The parts that must not change: the text before, between and after the places.
    fixed: Vec<String>,
    /// The names and original texts of the places between the fixed parts.
    places: Vec<(String, String)>,
}

/// The text of a place before and after a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceChange {
    /// The original text: a value, or the white space before a closing bracket.
    pub before: String,
    pub after: String,
}

impl Template {
    fn new() -> Self {
        Self {
            fixed: vec![String::new()],
            places: Vec::new(),
        }
    }

    fn push(&mut self, text: &str) {
        self.fixed.last_mut().expect("never empty").push_str(text);
    }

    fn push_place(&mut self, name: &str, text: String) {
        self.places.push((name.to_owned(), text));
        self.fixed.push(String::new());
    }

    /// Appends text that must not change.
    #[must_use]
    pub fn followed_by(mut self, text: &str) -> Self {
        self.push(text);
        self
    }

    pub fn text(&self) -> String {
        let places = self.places.iter().map(|(_, text)| text.as_str());
        let places = places.chain([""]);
        let pairs = self.fixed.iter().zip(places);
        pairs
            .flat_map(|(fixed, place)| [fixed.as_str(), place])
            .collect()
    }

    /// Compares a changed text with the template, and returns the texts of the places by name. Panics with the first
    /// difference if anything else has changed, even by one byte.
    #[track_caller]
    pub fn changes(&self, later: &str) -> BTreeMap<&str, PlaceChange> {
        let (first, others) = self.fixed.split_first().expect("never empty");
        let Some(mut rest) = later.strip_prefix(first.as_str()) else {
            panic!("{}", divergence(first, later));
        };
        let mut changes = BTreeMap::new();
        for (number, ((name, before), fixed)) in self.places.iter().zip(others).enumerate() {
            let is_last = number + 1 == self.places.len();
            let found = if is_last {
                rest.ends_with(fixed.as_str())
                    .then(|| rest.len() - fixed.len())
            } else {
                rest.find(fixed.as_str())
            };
            let Some(at) = found else {
                panic!("after the place {name}, {}", divergence(fixed, rest));
            };
            let change = PlaceChange {
                before: before.clone(),
                after: rest[..at].to_owned(),
            };
            changes.insert(name.as_str(), change);
            rest = &rest[at + fixed.len()..];
        }
        assert_eq!(rest, "", "text after the end of the template");
        changes
    }
}

impl PlaceChange {
    pub fn is_unchanged(&self) -> bool {
        self.before == self.after
    }

    /// Returns the text that was inserted. Panics if the place changed in another way.
    #[track_caller]
    pub fn inserted(&self) -> &str {
        let (before, after) = (&self.before, &self.after);
        let around = (0..=before.len()).find(|&at| {
            after.len() >= before.len()
                && after.starts_with(&before[..at])
                && after.ends_with(&before[at..])
        });
        let at = around.unwrap_or_else(|| panic!("{after:?} isn't {before:?} with an insertion"));
        &after[at..after.len() - (before.len() - at)]
    }

    /// Parses the elements that were inserted into an array.
    #[track_caller]
    pub fn elements(&self) -> Vec<Value> {
        let list = format!("[{}]", self.inserted().trim_start_matches(','));
        serde_json::from_str(&list).unwrap_or_else(|error| panic!("{error}: {list}"))
    }

    /// Parses the members that were inserted into an object.
    #[track_caller]
    pub fn members(&self) -> Value {
        let object = format!("{{{}}}", self.inserted().trim_start_matches(','));
        serde_json::from_str(&object).unwrap_or_else(|error| panic!("{error}: {object}"))
    }
}

/// Describes where `text` first differs from `fixed`, which it should contain.
fn divergence(fixed: &str, text: &str) -> String {
    let boundaries = fixed.char_indices().map(|(at, _)| at);
    let held = boundaries.take_while(|&at| text.contains(&fixed[..at]));
    let held = held.last().unwrap_or(0);
    let at = text.find(&fixed[..held]).unwrap_or(0) + held;
    let around = |text: &str| -> String { text.chars().take(120).collect() };
    format!(
        "the text differs from the template: expected {:?}, found {:?}",
        around(&fixed[held..]),
        around(&text[at..])
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::RawValue;

    use super::*;

    fn template() -> Template {
        let value = json!({"list": [{"source": "/a/b"}, 1], "object": {"a": "ü\"\\\n😀"}});
        let places = EditablePlaces {
            ends: &["/list", "/object"],
            values: &["/list/0/source"],
        };
        write(&value, &places, 7)
    }

    #[test]
    fn the_text_is_json_and_reproducible() {
        let text = template().text();
        assert_eq!(text, template().text());
        let _: &RawValue = serde_json::from_str(&text).unwrap();
    }

    #[test]
    fn changes_in_places_are_returned() {
        let template = template();
        assert!(
            template
                .changes(&template.text())
                .values()
                .all(PlaceChange::is_unchanged)
        );
        let mut later = template.clone();
        for (name, text) in &mut later.places {
            match name.as_str() {
                "/list" => text.insert_str(0, ",2,[3]"),
                "/object" => text.push_str(",\"b\":4"),
                _ => "\"/c\"".clone_into(text),
            }
        }
        let text = later.text();
        let changes = template.changes(&text);
        assert_eq!(changes["/list"].elements(), [json!(2), json!([3])]);
        assert_eq!(changes["/object"].members(), json!({"b": 4}));
        assert_eq!(changes["/list/0/source"].after, "\"/c\"");
    }

    #[test]
    fn a_change_of_any_other_byte_is_detected() {
        let template = template();
        let text = template.text();
        for (at, _) in text.match_indices(' ') {
            let shorter = format!("{}{}", &text[..at], &text[at + 1..]);
            let changes = std::panic::catch_unwind(|| {
                let all = template.changes(&shorter);
                all.values().all(PlaceChange::is_unchanged)
            });
            assert!(!changes.unwrap_or(false), "at {at}");
        }
    }

    #[test]
    #[should_panic(expected = "differs from the template")]
    fn missing_text_is_shown() {
        let template = template();
        let text = template.text();
        template.changes(&text[..text.len() - 1]);
    }
}

//! Parses JSON like Go's `encoding/json`, which decodes all values of a duplicate key into the same variable.
//!
//! Objects are merged. Lists are merged element by element, and have the length of the last list. To runc,
//! `"mounts":[{"source":"/a"}],"mounts":[{"destination":"/b"}]` is one mount of `/a` on `/b`.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses the first value in a text.
pub(super) fn parse(text: &[u8]) -> Option<Value> {
    let mut value = Value::Null;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    Variable(&mut value).deserialize(&mut deserializer).ok()?;
    Some(value)
}

/// The variable that a value is decoded into.
struct Variable<'v>(&'v mut Value);

impl<'de> DeserializeSeed<'de> for Variable<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Variable<'_> {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "the methods of a visitor return it"
    )]
    fn set<E>(self, value: impl Into<Value>) -> Result<(), E> {
        *self.0 = value.into();
        Ok(())
    }
}

impl<'de> Visitor<'de> for Variable<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.set(value)
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.set(value)
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.set(value)
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.set(value)
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.set(value)
    }

    /// `null` unsets a pointer or a list, and leaves any other value unchanged.
    fn visit_unit<E>(self) -> Result<(), E> {
        if self.0.is_object() || self.0.is_array() {
            *self.0 = Value::Null;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if !self.0.is_array() {
            *self.0 = Value::Array(Vec::new());
        }
        let Value::Array(elements) = self.0 else {
            return Ok(());
        };
        let mut count = 0;
        loop {
            let mut element = elements.get(count).cloned().unwrap_or_default();
            if list.next_element_seed(Variable(&mut element))?.is_none() {
                break;
            }
            match elements.get_mut(count) {
                Some(earlier) => *earlier = element,
                None => elements.push(element),
            }
            count += 1;
        }
        elements.truncate(count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if !self.0.is_object() {
            *self.0 = Value::Object(Map::new());
        }
        let Value::Object(members) = self.0 else {
            return Ok(());
        };
        while let Some(key) = map.next_key::<String>()? {
            map.next_value_seed(Variable(members.entry(key).or_insert(Value::Null)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// runc 1.1.5, built with Go 1.19, was observed to merge these values in the same way.
    #[test]
    fn values_of_duplicate_keys_are_merged() {
        for (text, expected) in [
            (
                r#"{"m":[{"s":"/a","o":["x","y"]},{"s":"/c"}],"m":[{"d":"/b","o":["z"]}]} x"#,
                json!({"m": [{"s": "/a", "o": ["z"], "d": "/b"}]}),
            ),
            (
                r#"{"l":{"a":1,"b":2},"l":{"b":3}}"#,
                json!({"l": {"a": 1, "b": 3}}),
            ),
            (
                r#"{"l":{"a":1},"l":null,"s":"x","s":null}"#,
                json!({"l": null, "s": "x"}),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(parse(b"{"), None);
    }
}

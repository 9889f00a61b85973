//! A value as Go's `encoding/json` makes it of a text: what stands twice is read into one place, one
//! after the other. Of objects the members come together, and of lists the elements, as many as the
//! last list has: `"mounts":[{"source":"/a"}],"mounts":[{"destination":"/b"}]` is one mount of `/a` on
//! `/b` to runc.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The first value in a text.
pub(super) fn value_of(text: &[u8]) -> Option<Value> {
    let mut value = Value::Null;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    Place(&mut value).deserialize(&mut deserializer).ok()?;
    Some(value)
}

/// What a value is read into.
struct Place<'v>(&'v mut Value);

impl<'de> DeserializeSeed<'de> for Place<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Place<'_> {
    #[expect(
        clippy::unnecessary_wraps,
        reason = "what each of a visitor's methods ends with"
    )]
    fn set<E>(self, value: impl Into<Value>) -> Result<(), E> {
        *self.0 = value.into();
        Ok(())
    }
}

impl<'de> Visitor<'de> for Place<'_> {
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

    /// To a pointer or a list that is nothing; anything else stays.
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
            if list.next_element_seed(Place(&mut element))?.is_none() {
                break;
            }
            match elements.get_mut(count) {
                Some(place) => *place = element,
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
            map.next_value_seed(Place(members.entry(key).or_insert(Value::Null)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As runc 1.1.5, built with Go 1.19, was seen to do.
    #[test]
    fn what_stands_twice_comes_together() {
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
            assert_eq!(value_of(text.as_bytes()), Some(expected), "{text}");
        }
        assert_eq!(value_of(b"{"), None);
    }
}

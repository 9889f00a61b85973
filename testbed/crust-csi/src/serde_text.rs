//! Serialisation of values in records as text (`Display` and `FromStr`).

use std::fmt::Display;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr,
    T::Err: Display,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Serializes and deserializes an `Option` of such a value.
pub(crate) mod or_none {
    use serde::Serialize as _;

    use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

    #[expect(clippy::ref_option, reason = "serde's own signature")]
    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(T::to_string).serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}

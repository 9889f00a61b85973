//! Why a configuration can't be read or edited with certainty.

/// A `config.json` that isn't touched, and why.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// JSON text is UTF-8 (RFC 8259, 8.1).
    #[error("config.json isn't UTF-8")]
    Encoding(#[source] std::str::Utf8Error),
    /// Not JSON.
    #[error("config.json isn't valid JSON")]
    Syntax(#[source] serde_json::Error),
    /// A value of another type than the runtime-spec gives it.
    #[error("config.json: {place} is {found}, not {expected}")]
    WrongType {
        /// The JSON path.
        place: String,
        /// What the runtime-spec says.
        expected: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// A string with half of a surrogate pair, for which Go and C have different readings.
    #[error("config.json: {place} is not valid Unicode")]
    Text {
        /// The JSON path.
        place: String,
        /// Where in the string.
        #[source]
        source: serde_json::Error,
    },
    /// Go takes `Mounts` for `mounts`, crun doesn't.
    #[error(
        "config.json: {place} has a key \"{key}\", which runc reads as \"{meant}\" and others \
         don't; hint: spell it \"{meant}\""
    )]
    Case {
        /// The JSON path of the object.
        place: String,
        /// The key as it stands there.
        key: String,
        /// The key that Go takes it for.
        meant: &'static str,
    },
    /// Which of the two counts depends on the reader.
    #[error("config.json: {place} has the key \"{key}\" twice; hint: remove one of them")]
    Duplicate {
        /// The JSON path of the object.
        place: String,
        /// The key.
        key: String,
    },
    /// An edit of an element that isn't there.
    #[error("config.json: {array} has {length} elements, and number {index} was to be edited")]
    NoSuchElement {
        /// The JSON path of the array.
        array: &'static str,
        /// Which one.
        index: usize,
        /// How many there are.
        length: usize,
    },
    /// An edit with something that isn't one JSON value.
    #[error("the new element of {array} isn't JSON")]
    Element {
        /// The JSON path of the array.
        array: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

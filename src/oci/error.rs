//! The errors of a configuration that can't be read or edited with certainty.

use std::fmt;

/// A kind of reader of JSON that has a reading of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParserFamily {
    /// Go's encoding/json: runc. Keys in any case; of a key that stands twice the last, objects
    /// merged.
    Go,
    /// Whoever keeps strings as C does: crun. They end at a NUL character. Of a key that stands
    /// twice yajl gives the first, json-c (crun from 2026 on) the last.
    C,
}

impl fmt::Display for ParserFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Go => "delegates in Go (runc)",
            Self::C => "delegates in C (crun)",
        })
    }
}

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
        /// The type in the runtime-spec.
        expected: &'static str,
        /// What was found.
        found: &'static str,
    },
    /// A string with half of a surrogate pair, for which Go and C have different readings.
    #[error("config.json: {place} is not valid Unicode")]
    Text {
        /// The JSON path.
        place: String,
        /// The error of the parser, with the place in the string.
        #[source]
        source: serde_json::Error,
    },
    /// A string with a NUL character in it.
    #[error(
        "config.json: {place} has a NUL character, and of what comes after it {} read nothing; \
         hint: remove it",
        ParserFamily::C
    )]
    Nul {
        /// The JSON path.
        place: String,
    },
    /// Go takes `Mounts` for `mounts`, crun doesn't.
    #[error(
        "config.json: {place} has a key {key:?}, which {reader} read as \"{meant}\" and others \
         don't; hint: spell it \"{meant}\""
    )]
    Spelling {
        /// The JSON path of the object.
        place: String,
        /// The key as it stands there.
        key: String,
        /// The key that it is taken for.
        meant: &'static str,
        /// The kind of reader.
        reader: ParserFamily,
    },
    /// Two objects under one key: which of them counts, or what they come to together, depends on the
    /// reader.
    #[error(
        "config.json: {place} has the key \"{key}\" twice, each with an object, and delegates read \
         that in different ways; hint: make one of them"
    )]
    Duplicate {
        /// The JSON path of the object.
        place: String,
        /// The key.
        key: &'static str,
    },
    /// Names that would be taken for those which keys get here.
    #[error(
        "config.json: has keys twice, and names that begin with \"{name}\"; hint: give each key \
         once"
    )]
    Reserved {
        /// With what they begin.
        name: &'static str,
    },
    /// A list that is longer than any of use.
    #[error("config.json: {place} has more than {most} elements")]
    TooMany {
        /// The JSON path of the array.
        place: String,
        /// How many there may be.
        most: usize,
    },
    /// An edit of an element that isn't there.
    #[error("config.json: {array} has {length} elements, and number {index} was to be edited")]
    NoSuchElement {
        /// The JSON path of the array.
        array: &'static str,
        /// The index of the element.
        index: usize,
        /// How many there are.
        length: usize,
    },
    /// An edit with something that isn't one JSON value.
    #[error("the new element of {array} isn't JSON")]
    Element {
        /// The JSON path of the array.
        array: &'static str,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

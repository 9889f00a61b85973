//! Errors for configs that can't be read or edited unambiguously.

use std::fmt;

/// A family of JSON parsers that delegates use. They differ in how they parse unusual documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParserFamily {
    /// Go's encoding/json, used by runc. It matches keys case-insensitively. For a duplicate key it uses the last
    /// value, and merges objects.
    Go,
    /// Parsers with C strings, used by crun. Strings end at a NUL character. For a duplicate key yajl uses the first
    /// value, json-c (crun since 2026) the last.
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

/// An error of parsing or editing a `config.json`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DocumentError {
    /// JSON text must be UTF-8 (RFC 8259, 8.1).
    #[error("config.json isn't UTF-8; hint: regenerate the bundle's config.json")]
    Encoding(#[source] std::str::Utf8Error),
    #[error("config.json isn't valid JSON; hint: regenerate the bundle's config.json")]
    Syntax(#[source] serde_json::Error),
    /// A value doesn't have the type that the OCI runtime specification requires.
    #[error(
        "config.json: {json_path} is {found}, not {expected}; hint: regenerate the bundle's config.json"
    )]
    WrongType {
        json_path: String,
        expected: &'static str,
        found: &'static str,
    },
    /// A string contains an unpaired surrogate, which Go and C parsers decode differently.
    #[error(
        "config.json: {json_path} is not valid Unicode; hint: remove unpaired surrogates (\\uD800 to \\uDFFF) from \
         the string"
    )]
    Text {
        json_path: String,
        /// The parser's error, with the position in the string.
        #[source]
        source: serde_json::Error,
    },
    /// A string contains a NUL character.
    #[error(
        "config.json: {json_path} has a NUL character, and {} ignore the rest of the string; hint: remove the \
         character",
        ParserFamily::C
    )]
    Nul { json_path: String },
    /// A key is equal to a known one for some parsers only, such as `Mounts` for Go.
    #[error(
        "config.json: {json_path} has a key {key:?}, which {family} read as \"{known}\" and others don't; hint: spell \
         it \"{known}\""
    )]
    Spelling {
        json_path: String,
        /// The key as written in the document.
        key: String,
        known: &'static str,
        family: ParserFamily,
    },
    /// A key occurs twice, each time with an object. Parsers use the first, the last, or merge them.
    #[error(
        "config.json: {json_path} has the key \"{key}\" twice, each with an object, and OCI runtimes read that \
         differently; hint: merge the two objects"
    )]
    Duplicate {
        json_path: String,
        key: &'static str,
    },
    /// Duplicate keys can't be masked, because the document already contains masked keys.
    #[error(
        "config.json has duplicate keys, and keys that begin with \"{prefix}\", which is reserved for runcrust; hint: \
         remove the duplicate keys"
    )]
    Reserved { prefix: &'static str },
    #[error("config.json: {json_path} has more than {limit} elements; hint: remove some of them")]
    TooMany { json_path: String, limit: usize },
    /// An edit names an element that doesn't exist.
    #[error("config.json: can't edit element {index} of {array}, which has {length} elements")]
    NoSuchElement {
        /// The JSON path of the array.
        array: &'static str,
        index: usize,
        length: usize,
    },
    /// The new text of an edit isn't exactly one JSON value.
    #[error("the new element of {array} isn't valid JSON")]
    NewElement {
        /// The JSON path of the array.
        array: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

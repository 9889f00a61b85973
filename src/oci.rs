//! Reads and edits a bundle's `config.json`, and preserves everything else in it byte for byte.
//!
//! The document is never re-serialized. Values are borrowed spans of its text, and edits are splices. White space, key
//! order, unknown fields, unusual escapes, numbers beyond f64 and the garbage that Go's decoder tolerates after the
//! document are all preserved (docs/architecture.md, "The config"). oci-spec's types would drop or reject them.

mod document;
mod duplicate_keys;
mod edit;
mod error;
mod object;
mod pretty;
#[cfg(feature = "fuzzing")]
pub(crate) mod properties;
mod schema;
mod splice;
#[cfg(test)]
mod tests;
mod value;

use crust_state::json;

pub(crate) use document::{Document, IdMapping, Mount, Namespace};
pub(crate) use duplicate_keys::MountSource;
pub(crate) use edit::Edit;
pub(crate) use error::{DocumentError, ParserFamily};
pub(crate) use pretty::pretty;
pub(crate) use schema::{ArrayPath, DESTINATION, SOURCE};

//! A bundle's `config.json`: read and edited without losing a byte of what isn't understood.
//!
//! Nothing is re-serialised. The text stays as it is, values are found in it as borrowed spans, and
//! edits are splices: white space, key order, unknown fields, odd escapes, numbers beyond f64 and the
//! garbage that Go's decoder tolerates after the document all stay (docs/architecture.md, "The config").
//! oci-spec's types drop or refuse them.

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

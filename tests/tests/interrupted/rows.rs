//! The rows of the crash matrix.

pub(crate) mod creates;
pub(crate) mod ends;
pub(crate) mod verbs;

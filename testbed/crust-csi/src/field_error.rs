//! The error of a request with an invalid field.

/// A field of a request that is missing or invalid.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub(crate) struct FieldError {
    /// The name of the field in csi.proto.
    pub(crate) field: &'static str,
    pub(crate) reason: String,
}

impl FieldError {
    pub(crate) fn new(field: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Self { field, reason }
    }
}

//! The error of a field of a request.

/// A field of a request that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {reason}")]
pub(crate) struct FieldError {
    /// Its name in csi.proto.
    pub(crate) field: &'static str,
    /// The flaw of its value.
    pub(crate) reason: String,
}

impl FieldError {
    pub(crate) fn new(field: &'static str, reason: impl std::fmt::Display) -> Self {
        let reason = reason.to_string();
        Self { field, reason }
    }
}

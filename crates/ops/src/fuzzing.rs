//! Property checks of private modules for `fuzz/`. They aren't in releases.

/// Checks the parser of CLI answers with arbitrary output.
pub fn answer(bytes: &[u8]) {
    crate::cli::properties::check(bytes);
}

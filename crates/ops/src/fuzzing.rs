//! Properties of private modules, for the bytes that `fuzz/` makes up. No release has this.

/// The output of a runtime's CLI.
pub fn answer(bytes: &[u8]) {
    crate::cli::properties::check(bytes);
}

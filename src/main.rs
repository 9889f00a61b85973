//! Wrapper.
fn main() {}

//! The mount mechanism.

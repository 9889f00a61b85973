//! From a plan to the places of a config that change, and back.

mod build;
mod container;
mod devices;
#[cfg(feature = "fuzzing")]
pub(crate) mod laws;
mod sandbox;
mod undo;

pub(crate) use build::{Hooks, Made, Rewrite};
pub(crate) use container::{Known, container};
pub(crate) use sandbox::sandbox;
pub(crate) use undo::{is_marked, is_rewritten, undo};

#[cfg(test)]
mod tests;

//! Fuzz targets for the parsers of untrusted input.
//!
//! A target is a function that takes any bytes and panics if a property doesn't hold. `make fuzz` searches for such
//! bytes. `tests/seeds.rs` runs each target with the committed inputs in `seeds/`. Targets for private modules are in
//! the module `fuzzing` of their crate, which the feature `fuzzing` enables. Releases are built without it.

#![allow(
    clippy::missing_panics_doc,
    reason = "all targets panic if a property doesn't hold"
)]

mod mount_info;
mod mountinfo;
mod options;
mod superblock;
mod target_path;

pub use crust_engines::fuzzing::{json as handler_json, toml as handler_toml};
pub use crust_ops::fuzzing::answer;
pub use mount_info::mount_info;
pub use mountinfo::mountinfo;
pub use options::options;
pub use runcrust::fuzzing::{argv, config, generated_config};
pub use superblock::superblock;
pub use target_path::target_path;

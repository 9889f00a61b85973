//! What holds of whatever the parsers of untrusted text are given.
//!
//! A target is a function that takes any bytes, and panics where a property is broken. `make fuzz` looks
//! for such bytes; `tests/seeds.rs` has the committed ones of `seeds/` go through each target. Laws
//! of what other crates can't see are those crates' own, in their rooms `fuzzing`, which a feature
//! of that name opens and no release has.

#![allow(clippy::missing_panics_doc, reason = "that is what a target does")]

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
pub use runcrust::fuzzing::{argv, config, odd_config};
pub use superblock::superblock;
pub use target_path::target_path;

//! `runcrust crust …`: the subcommands that the node plugin of a CSI driver, or a person, calls.
//!
//! A success exits with 0 and prints one JSON object on standard output. A failure exits with another code and prints
//! nothing on standard output and one line of JSON on standard error.

mod arguments;
mod health;
mod output;
mod paths;
mod progress;
mod resize;
mod stage;
mod stats;
mod unstage;

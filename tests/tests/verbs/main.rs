//! `runcrust crust …`: what a CSI driver's node plugin, or a person, calls.
//!
//! Success is exit 0 and one JSON object on standard output; failure is another exit, nothing on
//! standard output and one line of JSON on standard error.

mod answer;
mod arguments;
mod health;
mod paths;
mod resize;
mod stage;
mod stats;
mod unstage;

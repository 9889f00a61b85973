//! `runcrust crust explain`: it says before what a create then does, and does nothing itself.

mod nothing;
mod plans;
mod refusals;
mod rewritten;
mod scene;
mod words;

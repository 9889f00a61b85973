//! `runcrust crust explain` reports what a create would do, and does nothing itself.

mod changes_nothing;
mod output;
mod plans;
mod refusals;
mod rewritten;
mod scene;

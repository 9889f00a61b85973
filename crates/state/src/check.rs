//! What a check of a node finds: what `runcrust crust doctor` and `crust_ops --check` both look at is
//! looked at here.

mod directory;
mod finding;
mod user;

use std::path::Path;

pub use directory::directory;
pub use finding::{Finding, Verdict};
pub use user::user;

use crate::trust::{self, Flaw};

/// A program that root runs for every container: `hint` says how there comes to be one.
#[must_use]
pub fn program(what: &'static str, path: &Path, hint: &str) -> Finding {
    match trust::program(path) {
        Ok(_) => Finding::pass(what, path.display().to_string()),
        // It has a hint of its own.
        Err(flaw @ Flaw::Writable { .. }) => Finding::failed(what, &flaw),
        Err(flaw) => Finding::fail(what, flaw.to_string(), hint),
    }
}

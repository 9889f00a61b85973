//! The rows of the table, a module each.

mod binary;
mod calls;
mod create;
mod fsgroup;
mod io;
mod lookup;
mod matched;
mod mounts;
mod passthrough;
mod pods;
mod stage;

use crate::effort::Effort;
use crate::measure::Measure;

/// One that can be asked for by its name.
pub(crate) struct Row {
    /// What `ROWS` names.
    pub(crate) name: &'static str,
    /// What it does, told while it does.
    pub(crate) about: &'static str,
    /// It panics where it can't be measured.
    pub(crate) run: fn(&Effort) -> Vec<Measure>,
}

/// All of them, in the table's order.
pub(crate) const ROWS: &[Row] = &[
    passthrough::ROW,
    create::ROW,
    matched::ROW,
    mounts::ROW,
    lookup::ROW,
    binary::ROW,
    fsgroup::ROW,
    fsgroup::MEMORY,
    stage::ROW,
    calls::ROW,
    io::ROW,
    pods::ROW,
];

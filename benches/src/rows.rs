//! The rows of the table. Each is a module.

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

/// A row that can be selected by its name.
pub(crate) struct Row {
    /// The name in `ROWS`.
    pub(crate) name: &'static str,
    /// A description, which is printed before the measurement.
    pub(crate) about: &'static str,
    /// Measures the row. It panics if that is impossible.
    pub(crate) run: fn(&Effort) -> Vec<Measure>,
}

/// All rows in the table's order.
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

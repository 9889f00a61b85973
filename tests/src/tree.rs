//! File trees: generated with every kind of entry, recorded as snapshots, and changed as kubelet changes them.

mod create_entries;
mod generate;
mod kubelet;
mod snapshot;

pub use create_entries::create_entries;
pub use generate::{OutsideFiles, generate};
pub use kubelet::{Policy, set_volume_ownership};
pub use snapshot::{Entry, Snapshot};

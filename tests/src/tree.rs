//! File trees: generated with every kind of entry, written down entry by entry, and walked as
//! kubelet walks them.

mod create_entries;
mod generate;
mod kubelet;
mod snapshot;

pub use create_entries::create_entries;
pub use generate::{OutsideFiles, generate};
pub use kubelet::{Policy, set_volume_ownership};
pub use snapshot::{Entry, Snapshot};

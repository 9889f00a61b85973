//! File trees: generated with every kind of entry, written down entry by entry, and walked as
//! kubelet walks them.

mod generate;
mod kubelet;
mod many;
mod snapshot;

pub use generate::{Outside, generate};
pub use kubelet::{Policy, set_volume_ownership};
pub use many::many;
pub use snapshot::{Entry, Snapshot};

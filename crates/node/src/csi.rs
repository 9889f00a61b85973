//! What CSI drivers are asked.

mod capabilities;
mod request;

pub use capabilities::Capabilities;
pub use request::{Lacks, Publish, access_mode, capability, context};

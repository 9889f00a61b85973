//! What CSI drivers are asked.

mod capabilities;
mod request;

pub(crate) use capabilities::Capabilities;
pub(crate) use request::{Lacks, Publish, access_mode, capability, context};

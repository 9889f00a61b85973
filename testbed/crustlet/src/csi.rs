//! What CSI drivers are asked.

mod call;
mod capabilities;
mod client;
mod request;

pub(crate) use call::Call;
pub(crate) use capabilities::{Abilities, Capabilities, ControllerCapabilities};
pub(crate) use client::{CallError, Driver};
pub(crate) use request::{Lacks, Publish, capability, context, mode};

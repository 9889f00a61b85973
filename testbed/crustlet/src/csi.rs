//! CSI drivers: their capabilities, and the client that calls them.

mod call;
mod client;
mod request;

use crust_proto::csi::v1::controller_service_capability::Type as ControllerType;
use crust_proto::csi::v1::controller_service_capability::rpc::Type as ControllerRpc;
use crust_proto::csi::v1::node_service_capability::Type;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{ControllerGetCapabilitiesResponse, NodeGetCapabilitiesResponse};

pub(crate) use call::CsiRequest;
pub(crate) use client::{CallError, Driver};
pub(crate) use request::{
    LacksCapability, PublishOptions, access_mode, volume_capability, volume_context,
};

/// The capabilities of a service of a driver. They are requested each time, because the driver may have been replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Capabilities<R = Rpc>(Vec<R>);

/// The capabilities of a driver's controller service. Empty if the driver has no such service.
pub(crate) type ControllerCapabilities = Capabilities<ControllerRpc>;

/// The capabilities of both services of a driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DriverCapabilities {
    pub(crate) controller: ControllerCapabilities,
    pub(crate) node: Capabilities,
}

impl<R: Copy + PartialEq> Capabilities<R> {
    pub(crate) fn has(&self, capability: R) -> bool {
        self.0.contains(&capability)
    }
}

impl<R> Default for Capabilities<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Sorts the capabilities and removes duplicates.
impl<R: Copy + Into<i32>> FromIterator<R> for Capabilities<R> {
    fn from_iter<T: IntoIterator<Item = R>>(capabilities: T) -> Self {
        let mut capabilities: Vec<R> = capabilities.into_iter().collect();
        capabilities.sort_by_key(|capability| (*capability).into());
        capabilities.dedup_by_key(|capability| (*capability).into());
        Self(capabilities)
    }
}

/// Skips capabilities that crustlet doesn't know.
impl From<NodeGetCapabilitiesResponse> for Capabilities {
    fn from(response: NodeGetCapabilitiesResponse) -> Self {
        let types = response
            .capabilities
            .into_iter()
            .filter_map(|capability| capability.r#type);
        let rpcs = types.filter_map(|kind| match kind {
            Type::Rpc(rpc) => Rpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

/// Skips capabilities that crustlet doesn't know.
impl From<ControllerGetCapabilitiesResponse> for ControllerCapabilities {
    fn from(response: ControllerGetCapabilitiesResponse) -> Self {
        let types = response
            .capabilities
            .into_iter()
            .filter_map(|capability| capability.r#type);
        let rpcs = types.filter_map(|kind| match kind {
            ControllerType::Rpc(rpc) => ControllerRpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

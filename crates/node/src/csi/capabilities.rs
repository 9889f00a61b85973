//! What a driver can do.

use crust_proto::csi::v1::node_service_capability::Type;
use crust_proto::csi::v1::node_service_capability::rpc::Type as Rpc;
use crust_proto::csi::v1::{
    ControllerGetCapabilitiesResponse, NodeGetCapabilitiesResponse, controller_service_capability,
};

/// On a node, as the driver tells it, each time it is asked: it may have been replaced meanwhile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Capabilities(Vec<Rpc>);

impl Capabilities {
    /// Whether it has told so.
    pub(crate) fn has(&self, capability: Rpc) -> bool {
        self.0.contains(&capability)
    }
}

impl FromIterator<Rpc> for Capabilities {
    fn from_iter<T: IntoIterator<Item = Rpc>>(capabilities: T) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// Those that nobody here knows are left out.
impl From<NodeGetCapabilitiesResponse> for Capabilities {
    fn from(response: NodeGetCapabilitiesResponse) -> Self {
        let types = response.capabilities.into_iter().filter_map(|it| it.r#type);
        let rpcs = types.filter_map(|it| match it {
            Type::Rpc(rpc) => Rpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

/// With volumes wherever they are, as the driver tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ControllerCapabilities(Vec<controller_service_capability::rpc::Type>);

impl ControllerCapabilities {
    /// Whether it has told so.
    pub(crate) fn has(&self, capability: controller_service_capability::rpc::Type) -> bool {
        self.0.contains(&capability)
    }
}

/// Those that nobody here knows are left out.
impl From<ControllerGetCapabilitiesResponse> for ControllerCapabilities {
    fn from(response: ControllerGetCapabilitiesResponse) -> Self {
        use controller_service_capability::Type;
        let types = response.capabilities.into_iter().filter_map(|it| it.r#type);
        let rpcs = types.filter_map(|it| match it {
            Type::Rpc(rpc) => rpc.r#type.try_into().ok(),
        });
        Self(rpcs.collect())
    }
}

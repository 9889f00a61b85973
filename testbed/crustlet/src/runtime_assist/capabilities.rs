//! What a runtime can do.

use crust_proto::runtime::v1alpha1::RuntimeGetCapabilitiesResponse;
use crust_proto::runtime::v1alpha1::runtime_capability::Type;
use crust_proto::runtime::v1alpha1::runtime_capability::rpc::Type as Rpc;

use crate::volumes::spec::MountSpec;

/// As the runtime tells it, each time it is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RuntimeCapabilities(Vec<Rpc>);

impl RuntimeCapabilities {
    /// Whether it has told so.
    pub(crate) fn has(&self, capability: Rpc) -> bool {
        self.0.contains(&capability)
    }

    /// What it lacks to do after the mount what the pod asks for: then the driver mounts the volume (the draft's
    /// story 2).
    pub(crate) fn lacks(&self, mount: &MountSpec) -> Option<&'static str> {
        let group = match mount.change_policy.as_deref() {
            _ if mount.fs_group.is_none() => None,
            Some("OnRootMismatch") => Some(Rpc::FsGroupChangePolicyRootMismatch),
            _ => Some(Rpc::FsGroupChangePolicyAlways),
        };
        let subpath = mount.has_subpath.then_some(Rpc::Subpath);
        let mut needed = [group, subpath].into_iter().flatten();
        let lacking = needed.find(|it| !self.has(*it));
        lacking.as_ref().map(Rpc::as_str_name)
    }
}

impl FromIterator<Rpc> for RuntimeCapabilities {
    fn from_iter<T: IntoIterator<Item = Rpc>>(capabilities: T) -> Self {
        Self(capabilities.into_iter().collect())
    }
}

/// Those that nobody here knows are left out.
impl From<RuntimeGetCapabilitiesResponse> for RuntimeCapabilities {
    fn from(response: RuntimeGetCapabilitiesResponse) -> Self {
        let types = response.capabilities.into_iter().filter_map(|it| it.r#type);
        let rpcs = types.filter_map(|it| match it {
            Type::Rpc(rpc) => Rpc::try_from(rpc.r#type).ok(),
        });
        rpcs.collect()
    }
}

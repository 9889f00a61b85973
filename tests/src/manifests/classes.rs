//! Builders for the `StorageClass`, the `RuntimeClass` and the `CSIDriver`.

use std::fmt::{self, Display};
use std::path::Path;

use super::YamlFlow;
use crate::csi::DRIVER;
use crate::node::utf8;

/// A `StorageClass` of the harness's driver that allows expansion.
#[derive(Debug, Clone)]
pub struct StorageClass {
    name: String,
    binding: &'static str,
    parameters: Vec<String>,
    allow_runtime_assisted_mount: Option<bool>,
}

impl StorageClass {
    /// Makes a class whose volumes are bound when a pod uses the claim.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            binding: "WaitForFirstConsumer",
            parameters: Vec::new(),
            allow_runtime_assisted_mount: None,
        }
    }

    /// Binds volumes when the claim is created.
    #[must_use]
    pub fn immediate(mut self) -> Self {
        self.binding = "Immediate";
        self
    }

    /// Adds a parameter, such as `csi.storage.k8s.io/fstype: xfs`.
    #[must_use]
    pub fn parameter(mut self, line: &str) -> Self {
        self.parameters.push(line.to_owned());
        self
    }

    /// Sets `allowRuntimeAssistedMount` (KEP-2857's earlier draft).
    #[must_use]
    pub fn allow_runtime_assisted_mount(mut self, allow: bool) -> Self {
        self.allow_runtime_assisted_mount = Some(allow);
        self
    }
}

impl Display for StorageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, binding, .. } = self;
        write!(
            f,
            "\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: {name}
provisioner: {DRIVER}
volumeBindingMode: {binding}
allowVolumeExpansion: true
"
        )?;
        if !self.parameters.is_empty() {
            writeln!(f, "parameters: {{{}}}", self.parameters.join(", "))?;
        }
        if let Some(allow) = self.allow_runtime_assisted_mount {
            writeln!(f, "allowRuntimeAssistedMount: {allow}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone)]
pub struct RuntimeClass {
    name: String,
    handler: String,
    fs_mgmt_socket: Option<String>,
}

impl RuntimeClass {
    /// Makes a class for a handler of the container runtime.
    pub fn new(name: &str, handler: &str) -> Self {
        Self {
            name: name.to_owned(),
            handler: handler.to_owned(),
            fs_mgmt_socket: None,
        }
    }

    /// Sets `fsMgmtSocket` (KEP-2857's earlier draft), on which the handler's runtime listens.
    #[must_use]
    pub fn fs_mgmt_socket(mut self, socket: &Path) -> Self {
        self.fs_mgmt_socket = Some(utf8(socket).to_owned());
        self
    }
}

impl Display for RuntimeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, handler, .. } = self;
        write!(
            f,
            "\
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: {name}
handler: {handler}
"
        )?;
        if let Some(socket) = &self.fs_mgmt_socket {
            writeln!(f, "fsMgmtSocket: {}", YamlFlow(socket))?;
        }
        Ok(())
    }
}

/// The `CSIDriver` of the harness's driver.
#[derive(Debug, Clone)]
pub struct CsiDriver {
    fs_group_policy: &'static str,
    has_inline_volumes: bool,
}

impl CsiDriver {
    /// Makes the `CSIDriver` with this `fsGroupPolicy`: `File`, `None` or `ReadWriteOnceWithFSType`.
    pub fn with(fs_group_policy: &'static str) -> Self {
        Self {
            fs_group_policy,
            has_inline_volumes: false,
        }
    }

    /// Allows volumes in the spec of a pod, and passes the pod to the driver.
    #[must_use]
    pub fn inline_volumes(mut self) -> Self {
        self.has_inline_volumes = true;
        self
    }
}

impl Display for CsiDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = self.fs_group_policy;
        write!(
            f,
            "\
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: {DRIVER}
spec:
  attachRequired: false
  fsGroupPolicy: {policy}
"
        )?;
        if self.has_inline_volumes {
            writeln!(
                f,
                "  podInfoOnMount: true\n  volumeLifecycleModes: [Persistent, Ephemeral]"
            )?;
        }
        Ok(())
    }
}

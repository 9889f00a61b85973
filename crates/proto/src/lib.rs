//! The gRPC interfaces of runcrust, generated from the .proto files, which document them. [`v1`] is for CSI node
//! plugins, [`runtime`] for kubelet. [`csi`] is the interface of CSI plugins, and [`crustlet`] that of the node agent.
//! [`cri`] and [`registration`] have the parts of Kubernetes' interfaces that the node agent needs.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// The package `crust.v1`: deferring a volume's mount to the container runtime (KEP-2857).
#[allow(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the documentation is that of the .proto file"
)]
pub mod v1 {
    tonic::include_proto!("crust.v1");
}

/// Storage management by a runtime handler (KEP-2857's earlier draft).
pub mod runtime {
    /// The package `crust.runtime.v1alpha1`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the documentation is that of the .proto file"
    )]
    pub mod v1alpha1 {
        tonic::include_proto!("crust.runtime.v1alpha1");
    }
}

/// The Container Storage Interface.
pub mod csi {
    /// The package `csi.v1`, with the additions of KEP-2857 and its earlier draft.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the documentation is that of the .proto file"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }

    /// The .proto file of the package as a serialised `google.protobuf.FileDescriptorSet`, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/csi.bin"));
}

/// The interface of the node agent crustlet.
pub mod crustlet {
    /// The package `crustlet.v1`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the documentation is that of the .proto file"
    )]
    pub mod v1 {
        tonic::include_proto!("crustlet.v1");
    }

    /// The .proto file of the package as a serialised `google.protobuf.FileDescriptorSet`, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/crustlet.bin"));
}

/// The Container Runtime Interface of Kubernetes. Only the client is generated.
pub mod cri {
    /// The package `runtime.v1`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; what a field means is the interface's documentation's to say"
    )]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}

/// The plugin registration of Kubernetes. kubelet is the client, and a CSI driver serves it.
pub mod registration {
    /// The package `pluginregistration`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; what a field means is the interface's documentation's to say"
    )]
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
}

/// The .proto files of [`v1`] and [`runtime`] as a serialised `google.protobuf.FileDescriptorSet`, for server
/// reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/crust.bin"));

#[cfg(test)]
mod tests;

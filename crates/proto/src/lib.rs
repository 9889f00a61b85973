//! The gRPC interfaces: [`v1`] for CSI node plugins, [`runtime`] for kubelet, [`csi`], which such
//! plugins serve, and [`crustlet`], a node agent's own. What they mean stands in the .proto files, by which
//! clients in other languages are made too. [`cri`] and [`registration`] are the parts of Kubernetes' own
//! that such an agent needs.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

/// `crust.v1`: deferring a volume's mount to the container runtime (KEP-2857).
#[allow(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the documentation is that of the .proto file"
)]
pub mod v1 {
    tonic::include_proto!("crust.v1");
}

/// `crust.runtime`: storage management by a runtime handler (KEP-2857's earlier draft).
pub mod runtime {
    /// `crust.runtime.v1alpha1`.
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
    /// `csi.v1`, with what KEP-2857 and its earlier draft add.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the documentation is that of the .proto file"
    )]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }

    /// Its file as a serialised `google.protobuf.FileDescriptorSet`, for server reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/csi.bin"));
}

/// A node agent's own interface.
pub mod crustlet {
    /// `crustlet.v1`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; the documentation is that of the .proto file"
    )]
    pub mod v1 {
        tonic::include_proto!("crustlet.v1");
    }

    /// Its file as a serialised `google.protobuf.FileDescriptorSet`, for server reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/crustlet.bin"));
}

/// Kubernetes' Container Runtime Interface: the client's side.
pub mod cri {
    /// `runtime.v1`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; what a field means is the interface's documentation's to say"
    )]
    pub mod v1 {
        tonic::include_proto!("runtime.v1");
    }
}

/// Kubernetes' plugin registration: kubelet is the client, a driver serves.
pub mod registration {
    /// `pluginregistration`.
    #[allow(
        missing_docs,
        clippy::pedantic,
        reason = "generated; what a field means is the interface's documentation's to say"
    )]
    pub mod v1 {
        tonic::include_proto!("pluginregistration");
    }
}

/// The files of [`v1`] and [`runtime`] as a serialised `google.protobuf.FileDescriptorSet`, for server
/// reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/crust.bin"));

#[cfg(test)]
mod tests;

//! Compiles the .proto files with protox, so that protoc isn't needed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

#[expect(
    clippy::disallowed_methods,
    reason = "cargo passes OUT_DIR to build scripts in the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=kubernetes");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR")?);
    let crust = [
        "crust/v1/runtime.proto",
        "crust/runtime/v1alpha1/storage.proto",
    ];
    // One descriptor set for each server, for reflection.
    for (name, protos) in [
        ("crust", &crust[..]),
        ("csi", &["csi/v1/csi.proto"]),
        ("crustlet", &["crustlet/v1/node.proto"]),
    ] {
        let files = protox::compile(protos, ["proto"])?;
        std::fs::write(out.join(name).with_extension("bin"), files.encode_to_vec())?;
        // Clients pass a channel. Without a transport, servers don't depend on tonic's client.
        tonic_prost_build::configure()
            .build_transport(false)
            .compile_fds(files)?;
    }
    // Interfaces of Kubernetes. The registration is served by CSI drivers, and by tests that simulate one.
    for (proto, is_served) in [("cri.proto", false), ("registration.proto", true)] {
        let files = protox::compile([proto], ["kubernetes"])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .build_server(is_served)
            .compile_fds(files)?;
    }
    Ok(())
}

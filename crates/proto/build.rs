//! Compiles the .proto files, with protox: nobody needs protoc.

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

#[expect(
    clippy::disallowed_methods,
    reason = "cargo's own word to a build script"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=kubernetes");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR")?);
    let ours = [
        "crust/v1/runtime.proto",
        "crust/runtime/v1alpha1/storage.proto",
    ];
    // Whoever serves one of the two describes that one.
    for (name, protos) in [
        ("crust", &ours[..]),
        ("csi", &["csi/v1/csi.proto"]),
        ("crustlet", &["crustlet/v1/node.proto"]),
    ] {
        let files = protox::compile(protos, ["proto"])?;
        std::fs::write(out.join(name).with_extension("bin"), files.encode_to_vec())?;
        // Clients bring their own channel: the server needs none.
        tonic_prost_build::configure()
            .build_transport(false)
            .compile_fds(files)?;
    }
    // What others serve; a registration is served by drivers, and in tests by who plays one.
    for (proto, is_served) in [("cri.proto", false), ("registration.proto", true)] {
        let files = protox::compile([proto], ["kubernetes"])?;
        tonic_prost_build::configure()
            .build_transport(false)
            .build_server(is_served)
            .compile_fds(files)?;
    }
    Ok(())
}

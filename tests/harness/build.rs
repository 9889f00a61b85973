//! Generates the CRI's messages and client from its proto file. protox needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../crates/proto/kubernetes/cri.proto");
    let files = protox::compile(["cri.proto"], ["../../crates/proto/kubernetes"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(files)?;
    Ok(())
}

//! Generates the wire types from `protos/` with protox: no `protoc` binary is needed.

use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("protos");
    let files: Vec<PathBuf> = [
        "lockstep/v1/common.proto",
        "lockstep/v1/frontend.proto",
        "lockstep/v1/inference.proto",
        "lockstep/v1/worker.proto",
    ]
    .iter()
    .map(|file| root.join(file))
    .collect();
    println!("cargo:rerun-if-changed=protos");
    let descriptors = protox::compile(&files, [root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("lockstep.bin"),
        prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

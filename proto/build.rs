//! Generates the wire types from `protos/` with protox: no `protoc` binary is needed.

use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=protos");
    let lockstep = [
        "lockstep/v1/common.proto",
        "lockstep/v1/frontend.proto",
        "lockstep/v1/inference.proto",
        "lockstep/v1/worker.proto",
    ];
    generate("lockstep.bin", Path::new("protos"), &lockstep)?;
    let sglang = ["sglang_scheduler.proto"];
    generate("sglang.bin", Path::new("protos/sglang"), &sglang)
}

/// Generates the types of `files` below `root`, and their descriptors as `name`.
fn generate(name: &str, root: &Path, files: &[&str]) -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = files.iter().map(|file| root.join(file)).collect();
    let descriptors = protox::compile(&files, [root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let bytes = prost::Message::encode_to_vec(&descriptors);
    std::fs::write(out.join(name), bytes)?;
    // The codec asks which messages are clients' by their names.
    let mut config = tonic_prost_build::Config::new();
    config.enable_type_names();
    tonic_prost_build::configure()
        .codec_path("crate::codec::SliceCodec")
        // Megabytes that every call gives again.
        .bytes(".smg.grpc.common.GetTokenizerChunk")
        .compile_fds_with_config(descriptors, config)?;
    Ok(())
}

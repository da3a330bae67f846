//! The tokenizer's files as a zip archive, in chunks, for gateways that can't read the model's
//! folder.

use std::{io::Write as _, path::Path};

use bytes::Bytes;
use lockstep_files::LARGEST_TOKENIZER;
use lockstep_proto::pb::smg::grpc::common::GetTokenizerChunk;
use sha2::{Digest as _, Sha256};
use tonic::Status;
use zip::write::SimpleFileOptions;

/// Bytes per chunk, well below common message limits.
const CHUNK: usize = 1 << 20;

/// Files that make a tokenizer; those that exist are packed.
const FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
];

/// Packs the tokenizer files of a model folder. The last chunk carries the archive's SHA-256.
/// Chunks are slices of one archive in memory, and so are their clones.
///
/// # Errors
/// INTERNAL if a file can't be read, NOT_FOUND if there is no tokenizer.
pub fn chunks(folder: &Path) -> Result<Vec<GetTokenizerChunk>, Status> {
    let why = match lockstep_files::contains(folder, "tokenizer.json") {
        Ok(true) => None,
        Ok(false) => Some(String::new()),
        Err(error) => Some(format!(": {error}")),
    };
    if let Some(why) = why {
        let message = format!("the model folder has no tokenizer.json{why}");
        return Err(Status::not_found(message));
    }
    let archive = pack(folder)
        .map_err(|error| Status::internal(format!("packing the tokenizer failed: {error}")))?;
    let sha256 = Sha256::digest(&archive)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let archive = Bytes::from(archive);
    let chunk = |start: usize| GetTokenizerChunk {
        data: archive.slice(start..archive.len().min(start + CHUNK)),
        sha256: String::new(),
    };
    let mut chunks: Vec<_> = (0..archive.len()).step_by(CHUNK).map(chunk).collect();
    if let Some(last) = chunks.last_mut() {
        last.sha256 = sha256;
    }
    Ok(chunks)
}

fn pack(folder: &Path) -> Result<Vec<u8>, std::io::Error> {
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for name in FILES {
        match lockstep_files::read(folder, name, LARGEST_TOKENIZER) {
            Ok(bytes) => {
                archive.start_file(name, SimpleFileOptions::default())?;
                archive.write_all(&bytes)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_gives_the_same_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        // Packing can't make hashes shorter, so each byte is one of a hash.
        let bytes: Vec<u8> = (0..CHUNK.div_ceil(16))
            .flat_map(|at| Sha256::digest(at.to_le_bytes()))
            .collect();
        std::fs::write(folder.path().join("tokenizer.json"), bytes).expect("written");
        let chunks = chunks(folder.path()).expect("packed");
        assert_eq!(chunks.len(), 3);
        assert!(chunks[..2].iter().all(|chunk| chunk.data.len() == CHUNK));
        for (of_one, of_another) in chunks.iter().zip(chunks.clone()) {
            assert_eq!(of_one.data.as_ptr(), of_another.data.as_ptr());
        }
    }
}

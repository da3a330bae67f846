//! Blocks of a GGUF file: the types of its matrices.

use std::path::Path;

use lockstep_files::weights::{Dtype, weight_files};
use lockstep_types::{BlockType, GgufCheckpoint};

/// Finds the types of the matrices of the file `path` that are blocks. A missing or damaged file is
/// reported by the code that loads the weights.
pub(super) fn read(gguf: &mut GgufCheckpoint, path: &Path) {
    let files = weight_files(path).ok().flatten().unwrap_or_default();
    for (name, place) in files.iter().flat_map(|file| &file.tensors) {
        if let Dtype::Blocks(kind) = place.dtype
            && let Some(kind) = BlockType::named(kind.name)
        {
            gguf.blocks.insert(GgufCheckpoint::key(name), kind);
        }
    }
}

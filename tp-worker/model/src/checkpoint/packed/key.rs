//! The key of packed files: a hash of everything that decides the packed bytes.

use blake3::{Hash, Hasher};
use lockstep_backend::{Backend, MatrixRole};
use lockstep_types::{CheckpointFormat, IntegerCheckpoint, ModelConfig};

use super::layout;
use crate::{
    Topology,
    blocks::parts::{Listed, Tensors},
};

/// Returns the backend's names of the packed forms of `model`; `None` if the backend's matrices
/// can't be saved. Forms of a rank's parts follow from these names, from the parts, and from
/// the tensors in the checkpoint. A router is not among them: its form follows from its role,
/// and has the version of the others.
pub(crate) fn forms<B: Backend>(backend: &B, model: &ModelConfig) -> Option<String> {
    let form = |role| backend.packed_form(model.weight_format(role));
    let projection = form(MatrixRole::Projection)?;
    let vocabulary = form(MatrixRole::Vocabulary)?;
    // The inputs that share a scale stand in `config.json`, which is no part of the content.
    // What no format with scales holds is packed exactly, which older versions did not do.
    let scales = match &model.checkpoint {
        CheckpointFormat::Floats | CheckpointFormat::Mxfp4(_) | CheckpointFormat::Gguf(_) => {
            String::new()
        }
        CheckpointFormat::Fp8(fp8) => format!(", exact, scales of {:?}", fp8.block),
        CheckpointFormat::Integers(IntegerCheckpoint {
            layout,
            bits,
            groups,
            zeros,
            forms,
            others: _,
            fp8,
        }) => {
            let scales = fp8.as_ref().map(|fp8| fp8.block);
            format!(
                ", exact, {layout:?} of {bits:?} in {groups:?}, {zeros:?}, {forms:?}, {scales:?}"
            )
        }
    };
    Some(format!(
        "projection {projection}, vocabulary {vocabulary}{scales}, {} endian",
        if cfg!(target_endian = "big") {
            "big"
        } else {
            "little"
        }
    ))
}

/// Returns the hash of everything that decides the packed bytes of a rank's `tensors`.
/// Vectors do not count: they are read from the checkpoint at every start.
pub(super) fn key(
    tensors: &impl Tensors<Listed>,
    topology: Topology,
    forms: &str,
    content: &Hash,
) -> Hash {
    let mut hasher = Hasher::new();
    let mut add = |text: String| {
        hasher.update(text.as_bytes());
    };
    let version = layout::VERSION;
    add(format!(
        "lockstep packed weights {version}\n{topology:?}\n{forms}\n"
    ));
    tensors.each(|matrix| add(format!("{matrix:?}\n")), |_| {});
    hasher.update(content.as_bytes());
    hasher.finalize()
}

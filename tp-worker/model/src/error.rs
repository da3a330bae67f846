//! Why a model can't be loaded or run.

use std::path::PathBuf;

use lockstep_backend::{BackendError, WorldRows};

/// A model that can't be loaded or run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The folder holds no weights.
    #[error(
        "{folder} holds neither model.safetensors nor model.safetensors.index.json; \
         give --model-path a folder with Hugging Face safetensors"
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
    },
    /// A file can't be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is not what its name says, or was cut off.
    #[error("{file} is damaged: {reason}; copy or download it again")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Two files of one model hold the same tensor.
    #[error("tensor {tensor} is in both {first} and {second}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// A file that holds it.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// A tensor the model needs is in no file.
    #[error("{folder} has no tensor {tensor} (expected shape {expected:?})")]
    MissingTensor {
        /// The model's folder.
        folder: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape that config.json implies.
        expected: Vec<usize>,
    },
    /// A tensor's shape contradicts `config.json`.
    #[error("{file}: tensor {tensor} has shape {found:?}, config.json implies {expected:?}")]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that config.json implies.
        expected: Vec<usize>,
    },
    /// A tensor's element type is not served.
    #[error(
        "{file}: tensor {tensor} is {found}; expected BF16, F16 or F32 (quantized checkpoints are not served)"
    )]
    UnsupportedDType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A tensor of whole numbers is something else.
    #[error("{file}: tensor {tensor} is {found}; expected I64 or I32")]
    NotIntegers {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// Tensors that form one matrix differ in type.
    #[error("{file}: tensor {tensor} is not of the same type as {sibling}, with which it is fused")]
    MixedDTypes {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The tensor it is fused with.
        sibling: String,
    },
    /// The model can't be split over so many ranks.
    #[error(
        "--tp-size {tp_size}{} does not divide the model's {what} ({total}); use {remedy}",
        if *dp_size > 1 { format!(" over --dp-size {dp_size}") } else { String::new() }
    )]
    Split {
        /// The number asked for.
        tp_size: usize,
        /// DP ranks among them.
        dp_size: usize,
        /// What can't be split.
        what: &'static str,
        /// How many there are.
        total: usize,
        /// Numbers that work.
        remedy: String,
    },
    /// Layers whose keys and values differ in shape.
    #[error(
        "layer {layer} caches {found:?} (key/value heads, and their width) for each token, and \
         layer 0 {expected:?}: layers with several cache shapes are not served; use a model whose \
         layers have one"
    )]
    MixedCaches {
        /// The first layer that differs from layer 0.
        layer: usize,
        /// Its key/value heads, and the width of each.
        found: (usize, usize),
        /// Those of layer 0.
        expected: (usize, usize),
    },
    /// A forward pass larger than the buffers.
    #[error("a pass brings {found} {what}, buffers hold {limit}")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How many came.
        found: usize,
        /// How many fit.
        limit: usize,
    },
    /// What the DP ranks bring to a pass contradicts this rank's batch.
    #[error(
        "the DP ranks bring {found:?}, while DP rank {dp_rank} of {dp_size} has {tokens} tokens \
         and wants {wanted} logits; buffers hold {limit} tokens of each"
    )]
    World {
        /// What they are said to bring.
        found: WorldRows,
        /// This rank's.
        dp_rank: usize,
        /// DP ranks.
        dp_size: usize,
        /// Tokens of this rank's batch.
        tokens: usize,
        /// Wanted logits of this rank's batch.
        wanted: usize,
        /// Tokens of a DP rank that fit.
        limit: usize,
    },
    /// A pass of several DP ranks of which nobody says what they bring, or of one
    /// of which somebody does.
    #[error("a pass over {dp_size} DP ranks is run as if there were {}", if *dp_size == 1 { "more" } else { "one" })]
    NotDataParallel {
        /// DP ranks.
        dp_size: usize,
    },
    /// Ranks began a pass with notes that differ where they may not. Nothing of the pass
    /// has been taken for a result.
    #[error("ranks have brought different notes to a pass: they have diverged")]
    NotesDiffer,
    /// A hidden state that the model does not have.
    #[error("the input of layer {layer} is to be captured, the model has {layers} layers")]
    NoSuchLayer {
        /// The layer asked for, from 0.
        layer: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A whole model where a draft head is needed.
    #[error("{folder} is a whole model, not an EAGLE head; give the algorithm STANDALONE for it")]
    NotAHead {
        /// The folder.
        folder: PathBuf,
    },
    /// A draft head that was made for another model.
    #[error(
        "{folder} has hidden size {found}, the model it drafts for {expected};          give --speculative-draft-model-path a head that was trained for this model"
    )]
    HeadWidth {
        /// The head's folder.
        folder: PathBuf,
        /// Its hidden size.
        found: usize,
        /// The target's.
        expected: usize,
    },
    /// A draft head's pass without as many hidden inputs.
    #[error("a draft pass over {tokens} tokens was fed {fed} hidden states")]
    HiddenInputs {
        /// Tokens of the pass.
        tokens: usize,
        /// Hidden states fed since the last pass.
        fed: usize,
    },
    /// A stored hidden state that is not there.
    #[error("{what} {index} of a draft head was asked for, there are {count}")]
    NoHiddenState {
        /// What kind of state.
        what: &'static str,
        /// Its number, from 0.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

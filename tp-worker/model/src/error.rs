//! Errors of loading and running models.

use std::path::PathBuf;

use lockstep_backend::{BackendError, WorldRows};
use lockstep_types::AdapterError;

/// Error of loading or running a model. The message says what to do about it.
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
        /// The reason, in words.
        reason: String,
    },
    /// A file has something that is not served.
    #[error("{file}: {reason}")]
    Unserved {
        /// The file.
        file: PathBuf,
        /// The reason and the remedy, in words.
        reason: String,
    },
    /// Two files of one model hold the same tensor.
    #[error("tensor {tensor} is in both {first} and {second}")]
    Duplicate {
        /// The tensor.
        tensor: String,
        /// A file that holds the tensor.
        first: PathBuf,
        /// The other file that holds the tensor.
        second: PathBuf,
    },
    /// No file holds a tensor that the model needs.
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
        /// Shape of the tensor in the file.
        found: Vec<usize>,
        /// The shape that config.json implies.
        expected: Vec<usize>,
    },
    /// A tensor's element type is not served.
    #[error(
        "{file}: tensor {tensor} is {found}; expected BF16, F16 or F32, or F8_E4M3 if config.json has a `quantization_config` that says so"
    )]
    UnsupportedDType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor in the file.
        found: String,
    },
    /// A tensor that must hold rounded floats holds others. It was exchanged while it was looked
    /// at.
    #[error("{file}: tensor {tensor} is {found}, and was {expected} before; start again")]
    NotRounded {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Form that the tensor had.
        expected: &'static str,
        /// Type of the tensor in the file.
        found: String,
    },
    /// A tensor that must hold whole numbers has another type.
    #[error("{file}: tensor {tensor} is {found}; expected I64 or I32")]
    NotIntegers {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Type of the tensor in the file.
        found: String,
    },
    /// A tensor of weights or of scales holds something that is no finite number.
    #[error(
        "{file}: tensor {tensor} holds a value that is no finite number, so the model would give \
         no answers; download it again, or use another release of the model"
    )]
    NotNumber {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor beside a weight matrix says that the matrix is stored in a way that is not served.
    #[error(
        "{file}: tensor {tensor} lies beside {weight} and is not read, though it may change the \
         weights; use a release of the model in another form, or the unquantized one"
    )]
    Beside {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The weight matrix.
        weight: String,
    },
    /// A tensor of integers, or of their scales or zero points, does not fit the others of its module
    /// or the configuration.
    #[error("{file}: tensor {tensor} {reason}")]
    Integers {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// The reason, in words that follow its name.
        reason: String,
    },
    /// The model can't be split over so many ranks.
    #[error(
        "--tp-size {tp_size}{} does not divide the model's {what} ({total}); use {remedy}",
        if *dp_size > 1 { format!(" over --dp-size {dp_size}") } else { String::new() }
    )]
    Split {
        /// Number of ranks asked for.
        tp_size: usize,
        /// Number of DP ranks among them.
        dp_size: usize,
        /// Name of the dimension that can't be split.
        what: &'static str,
        /// Size of that dimension in the model.
        total: usize,
        /// Advice for the message. Example: "1, 2, 4 or 8".
        remedy: String,
    },
    /// Experts can't be split by number over so many groups of ranks.
    #[error(
        "--ep-size {ep_size} does not fit --tp-size {tp_size} and a model with {experts} experts \
         in a layer; use {remedy}"
    )]
    SplitExperts {
        /// Number of groups asked for.
        ep_size: usize,
        /// Number of ranks.
        tp_size: usize,
        /// Fewest experts of a layer that has some; 0 if none has.
        experts: usize,
        /// Advice for the message. Example: "1, 2 or 4".
        remedy: String,
    },
    /// A forward pass does not fit into the buffers.
    #[error("a pass brings {found} {what}, buffers hold {limit}")]
    TooLarge {
        /// Name of the things that are too many. Example: "tokens".
        what: &'static str,
        /// Number that the pass brings.
        found: usize,
        /// Number that fits.
        limit: usize,
    },
    /// The rows that DP ranks are said to bring to a pass contradict this rank's batch.
    #[error(
        "the DP ranks bring {found:?}, while DP rank {dp_rank} of {dp_size} has {tokens} tokens \
         and wants {wanted} logits; buffers hold {limit} tokens of each"
    )]
    World {
        /// Rows that the DP ranks are said to bring.
        found: WorldRows,
        /// Number of this rank's DP rank.
        dp_rank: usize,
        /// Number of DP ranks.
        dp_size: usize,
        /// Number of tokens of this rank's batch.
        tokens: usize,
        /// Number of wanted logits of this rank's batch.
        wanted: usize,
        /// Most tokens of each DP rank that fit.
        limit: usize,
    },
    /// A pass of several DP ranks was run without their row counts, or a pass of one DP rank
    /// with row counts.
    #[error("a pass over {dp_size} DP ranks is run as if there were {}", if *dp_size == 1 { "more" } else { "one" })]
    NotDataParallel {
        /// Number of DP ranks.
        dp_size: usize,
    },
    /// Ranks brought different notes to a pass where all notes must agree. No result of the
    /// pass was used.
    #[error("ranks have brought different notes to a pass: they have diverged")]
    NotesDiffer,
    /// A layer's input was to be captured, but the model has no such layer.
    #[error("the input of layer {layer} is to be captured, the model has {layers} layers")]
    NoSuchLayer {
        /// The layer asked for, from 0.
        layer: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// A whole model was given where a draft head is needed.
    #[error(
        "{folder} is no EAGLE head; give the algorithm STANDALONE for a whole model, and DFLASH for a DFlash model"
    )]
    NotAHead {
        /// The folder.
        folder: PathBuf,
    },
    /// Another draft was given where a DFlash model is needed.
    #[error("{folder} holds no DFlash model; give it to another --speculative-algorithm")]
    NotDflash {
        /// The folder.
        folder: PathBuf,
    },
    /// A draft head was made for another model.
    #[error(
        "{folder} has hidden size {found}, the model it drafts for {expected};          give --speculative-draft-model-path a head that was trained for this model"
    )]
    HeadWidth {
        /// The head's folder.
        folder: PathBuf,
        /// Hidden size of the head.
        found: usize,
        /// Hidden size of the target.
        expected: usize,
    },
    /// A draft head's pass was fed another number of hidden states than it has tokens.
    #[error("a draft pass over {tokens} tokens was fed {fed} hidden states")]
    HiddenInputs {
        /// Number of tokens of the pass.
        tokens: usize,
        /// Number of hidden states fed since the last pass.
        fed: usize,
    },
    /// The head has not stored a hidden state that was asked for.
    #[error("{what} {index} of a draft head was asked for, there are {count}")]
    NoHiddenState {
        /// Kind of the state: "root" or "output".
        what: &'static str,
        /// Number of the state, from 0.
        index: u32,
        /// Number of stored states of that kind.
        count: usize,
    },
    /// An adapter is not served.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A row has an adapter at a place where there is none.
    #[error("there is no adapter at place {place}: it was not loaded, or is gone; load it again")]
    NoAdapter {
        /// The place.
        place: u16,
    },
    /// The device failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

//! Kinds of integers that a configuration names, and keys that several tools write.

use std::collections::BTreeMap;

use lockstep_types::{
    CheckpointFormat, FactorType, Fp8Checkpoint, IntegerCheckpoint, IntegerForm, IntegerLayout,
    ModelConfigError, ModuleForm,
};

use crate::raw::Raw;

/// Keys of calibration, of kernels and of files, which tools for GPTQ, AWQ and AutoRound write and
/// which change no weight that is stored.
const NEUTRAL: [&str; 48] = [
    "act_group_aware",
    "amp",
    "autoround_version",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "cache_examples_on_gpu",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "do_fuse",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_quanted_input",
    "exllama_config",
    "fuse_max_seq_len",
    "gradient_accumulate_steps",
    "iters",
    "lm_head",
    "low_gpu_mem_usage",
    "lr",
    "max_input_length",
    "meta",
    "minmax_lr",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "modules_in_block_to_quantize",
    "modules_to_fuse",
    "modules_to_not_convert",
    "mse",
    "nsamples",
    "pad_token_id",
    "provider",
    "quant_block_list",
    "scale_dtype",
    "seqlen",
    "static_attention_granularity",
    "static_groups",
    "static_kv_granularity",
    "supported_types",
    "to_quant_block_names",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Refuses keys that are not `known` and may change weights. Keys that tell of nothing but
/// calibration, kernels and files are known everywhere. Inputs of 16 bits are not rounded.
///
/// # Errors
/// [`ModelConfigError::Unsupported`] names a key.
pub(super) fn refuse_unknown(config: &Raw, known: &[&str]) -> Result<(), ModelConfigError> {
    const BITS: &str = "act_bits";
    let of_inputs = config.count(BITS)?.is_none_or(|bits| bits >= 16);
    let is_known = |key: &str| {
        known.contains(&key) || NEUTRAL.contains(&key) || (of_inputs && key.starts_with("act_"))
    };
    match config.keys().find(|key| !is_known(key)) {
        None => Ok(()),
        Some(key) => Err(config.unsupported(key, "it may change weights, and is not served")),
    }
}

/// Kinds of integers, collected from the parts of a configuration.
#[derive(Default)]
pub(super) struct Kinds {
    bits: Vec<u8>,
    groups: Vec<Option<usize>>,
    zeros: Vec<bool>,
    scattered: bool,
}

/// One kind of integers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    /// Bits of an integer.
    pub bits: u8,
    /// Inputs that share a scale; `None` for whole rows.
    pub group: Option<usize>,
    /// True if groups have zero points of their own.
    pub zeros: bool,
    /// True if the inputs of a group may lie apart.
    pub scattered: bool,
}

impl Kinds {
    /// Adds a kind.
    pub(super) fn add(&mut self, kind: Kind) {
        let Kind {
            bits,
            group,
            zeros,
            scattered,
        } = kind;
        put(&mut self.bits, bits);
        put(&mut self.groups, group);
        put(&mut self.zeros, zeros);
        self.scattered |= scattered && group.is_some();
    }

    /// Returns the checkpoint, whose modules are of the first kind as long as no tensors are looked
    /// at; `None` if there is no kind.
    pub(super) fn checkpoint(
        self,
        layout: IntegerLayout,
        fp8: Option<Fp8Checkpoint>,
    ) -> Option<CheckpointFormat> {
        let form = IntegerForm {
            bits: *self.bits.first()?,
            group: *self.groups.first()?,
            zeros: self.zeros.contains(&true),
            scales: FactorType::F16,
            scattered: self.scattered,
        };
        Some(CheckpointFormat::Integers(IntegerCheckpoint {
            layout,
            bits: self.bits,
            groups: self.groups,
            zeros: self.zeros,
            forms: vec![ModuleForm::Integers(form)],
            others: BTreeMap::new(),
            fp8,
        }))
    }
}

fn put<T: PartialEq>(all: &mut Vec<T>, one: T) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// Reads a width in bits: 4 or 8.
pub(super) fn bits(config: &Raw, key: &str) -> Result<Option<u8>, ModelConfigError> {
    match config.size(key)? {
        None => Ok(None),
        Some(bits @ (4 | 8)) => Ok(Some(bits as u8)),
        Some(_) => Err(config.unsupported(key, "served are integers of 4 and 8 bits")),
    }
}

/// Reads a number of inputs that share a scale: `Some(None)` for -1, which means whole rows.
pub(super) fn group(config: &Raw, key: &str) -> Result<Option<Option<usize>>, ModelConfigError> {
    match config.get(key).map(|value| value.as_i64()) {
        None => Ok(None),
        Some(Some(-1)) => Ok(Some(None)),
        Some(_) => match config.size(key)? {
            Some(size) => Ok(Some(Some(size))),
            None => Ok(None),
        },
    }
}

/// Reads what a part of a configuration changes in `kind`.
///
/// # Errors
/// [`ModelConfigError`]: a key is not known, or asks for something that is not served.
pub(super) fn changed(config: &Raw, kind: Kind) -> Result<Kind, ModelConfigError> {
    const KNOWN: [&str; 6] = [
        "bits",
        "data_type",
        "desc_act",
        "group_size",
        "sym",
        "format",
    ];
    refuse_unknown(config, &KNOWN)?;
    refuse_unlike(config, "data_type", "int")?;
    if config.get("format").is_some() {
        return Err(config.unsupported("format", "all modules must have one format"));
    }
    Ok(Kind {
        bits: bits(config, "bits")?.unwrap_or(kind.bits),
        group: group(config, "group_size")?.unwrap_or(kind.group),
        zeros: !config.flag("sym", !kind.zeros)?,
        scattered: config.flag("desc_act", kind.scattered)?,
    })
}

/// Refuses a text that is there and is not `served`, in letters of any case.
pub(super) fn refuse_unlike(config: &Raw, key: &str, served: &str) -> Result<(), ModelConfigError> {
    match config.text(key)? {
        Some(text) if !text.eq_ignore_ascii_case(served) => {
            Err(config.unsupported(key, format!("served is {served}")))
        }
        _ => Ok(()),
    }
}

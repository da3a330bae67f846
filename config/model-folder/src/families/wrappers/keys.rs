//! Known keys of a wrapper's `text_config`. Any other key may change results. It is refused if
//! its value turns something on.

/// Keys that families read.
const READ: [&str; 29] = [
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "model_type",
    "n_routed_experts",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "use_sliding_window",
    "vocab_size",
];

/// Keys of training, of sampling, of files and of images, none of which changes the logits of
/// text.
const HARMLESS: [&str; 35] = [
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "dtype",
    "id2label",
    "image_token_id",
    "initializer_range",
    "is_composition",
    "label2id",
    "length_penalty",
    "max_length",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "pretraining_tp",
    "repetition_penalty",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "transformers_version",
    "typical_p",
    "use_cache",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
];

/// Returns true if the key is read, or changes nothing.
pub(super) fn is_known(key: &str) -> bool {
    READ.contains(&key) || HARMLESS.contains(&key)
}

//! Keys of published `config.json` files, and keys that nobody knows.

use super::*;

/// Keys of models of which transformers 4 wrote all, also those at their defaults.
fn of_old_transformers() -> Value {
    let sampling = json!({"bad_words_ids": null, "diversity_penalty": 0.0, "do_sample": true,
        "early_stopping": false, "encoder_no_repeat_ngram_size": 0, "forced_bos_token_id": null,
        "length_penalty": 1.0, "max_length": 4096, "min_length": 0, "no_repeat_ngram_size": 0,
        "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "prefix": null,
        "remove_invalid_values": false, "repetition_penalty": 1.0, "suppress_tokens": null,
        "temperature": 0.9, "top_k": 50, "top_p": 0.6, "typical_p": 1.0});
    let others = json!({"_name_or_path": "meta-llama/Llama-2-7b-hf", "add_cross_attention": false,
        "chunk_size_feed_forward": 0, "cross_attention_hidden_size": null,
        "decoder_start_token_id": null, "finetuning_task": null,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": false,
        "is_encoder_decoder": false, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "max_sequence_length": 2048, "output_attentions": false, "output_hidden_states": false,
        "output_scores": false, "pretraining_tp": 1, "problem_type": null, "pruned_heads": {},
        "return_dict": true, "return_dict_in_generate": false, "sep_token_id": null,
        "task_specific_params": null, "tf_legacy_loss": false, "tie_encoder_decoder": false,
        "tokenizer_class": null, "torchscript": false, "use_bfloat16": false});
    with(sampling, &others)
}

/// Returns a file of each family with the keys that published files have beside sizes.
fn published() -> Vec<(&'static str, Value)> {
    let common = json!({"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": true,
        "transformers_version": "4.51.0", "pad_token_id": 2});
    let of = |class: &str, model_type: &str, own: Value| {
        let named = json!({"architectures": [class], "model_type": model_type});
        with(with(with(llama(), &common), &named), &own)
    };
    let qwen = json!({"use_mrope": false, "use_sliding_window": false, "sliding_window": 131_072,
        "max_window_layers": 2});
    vec![
        (
            "Llama 2",
            of("LlamaForCausalLM", "llama", of_old_transformers()),
        ),
        (
            "SmolLM2",
            of(
                "LlamaForCausalLM",
                "llama",
                json!({"is_llama_config": true,
                "rope_interleaved": false, "pretraining_tp": 1,
                "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}}),
            ),
        ),
        (
            "a fine-tuned Llama",
            of(
                "LlamaForCausalLM",
                "llama",
                json!({"unsloth_fixed": true, "head_dim": 8,
                "unsloth_version": "2025.3.19", "_attn_implementation_autoset": true,
                "tokenizer_model_max_length": 2048, "tokenizer_padding_side": "right",
                "_flash_attn_2_enabled": true, "gradient_checkpointing": true}),
            ),
        ),
        (
            "Mistral",
            of(
                "MistralForCausalLM",
                "mistral",
                json!({"sliding_window": 4096, "head_dim": 8,
                "attention_bias": "(absent)", "mlp_bias": "(absent)"}),
            ),
        ),
        ("Qwen2.5", of("Qwen2ForCausalLM", "qwen2", qwen.clone())),
        (
            "Qwen3",
            of(
                "Qwen3ForCausalLM",
                "qwen3",
                with(qwen, &json!({"head_dim": 16})),
            ),
        ),
        (
            "Phi-4-mini",
            of(
                "Phi3ForCausalLM",
                "phi3",
                json!({"auto_map": {"AutoConfig": "configuration_phi3"},
                "embd_pdrop": 0.0, "resid_pdrop": 0.0, "full_attn_mod": 1, "interpolate_factor": 1,
                "lm_head_bias": false, "partial_rotary_factor": 0.75, "sliding_window": 262_144,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "original_max_position_embeddings": 512}),
            ),
        ),
        (
            "MiniMax-M2",
            of(
                "MiniMaxM2ForCausalLM",
                "minimax_m2",
                json!({"attn_type_list": [1, 1],
                "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"},
                "head_dim": 16, "layernorm_full_attention_beta": 1.0,
                "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
                "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1, "num_mtp_modules": 3,
                "num_experts_per_tok": 2, "num_local_experts": 4, "output_router_logits": false,
                "qk_norm_type": "per_layer", "rotary_dim": 8, "router_aux_loss_coef": 0.001,
                "router_jitter_noise": 0.0, "scoring_func": "sigmoid", "shared_intermediate_size": 0,
                "shared_moe_mode": "sigmoid", "sliding_window": null, "use_mtp": true,
                "use_qk_norm": true, "use_routing_bias": true}),
            ),
        ),
    ]
}

#[test]
fn published_files_load() {
    for (name, config) in published() {
        load(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// A key that may change results is refused by name, and so is one that a newer model of the family
/// has and that is not served.
#[test]
fn unknown_keys_are_refused_by_name() {
    let unserved = [
        (
            "Llama 2",
            json!({"rope_interleaved": true}),
            "`rope_interleaved`",
        ),
        (
            "Llama 2",
            json!({"quantization": {"bits": 4, "group_size": 64}}),
            "`quantization`",
        ),
        (
            "Llama 2",
            json!({"is_encoder_decoder": true}),
            "`is_encoder_decoder`",
        ),
        (
            "Mistral",
            json!({"llama_4_scaling_beta": 0.1}),
            "`llama_4_scaling_beta`",
        ),
        ("Qwen2.5", json!({"use_mrope": true}), "`use_mrope`"),
        (
            "Qwen2.5",
            json!({"dual_chunk_attention_config": {"chunk_size": 262_144}}),
            "`dual_chunk_attention_config`",
        ),
        (
            "Qwen3",
            json!({"linear_attention": true}),
            "`linear_attention`",
        ),
        ("Phi-4-mini", json!({"full_attn_mod": 2}), "`full_attn_mod`"),
        (
            "Phi-4-mini",
            json!({"lm_head_bias": true}),
            "`lm_head_bias`",
        ),
        (
            "MiniMax-M2",
            json!({"attn_type_list": [1, 0]}),
            "`attn_type_list`",
        ),
        (
            "MiniMax-M2",
            json!({"scoring_func": "softmax"}),
            "`scoring_func`",
        ),
        ("MiniMax-M2", json!({"use_qk_norm": false}), "`use_qk_norm`"),
        (
            "MiniMax-M2",
            json!({"layernorm_mlp_beta": 2}),
            "`layernorm_mlp_beta`",
        ),
        (
            "MiniMax-M2",
            json!({"shared_intermediate_size": 64}),
            "`shared_intermediate_size`",
        ),
    ];
    let published = published();
    let nobodys = published.iter().map(|(name, _)| {
        (
            *name,
            json!({"output_temperature_of_nobody": 1.5}),
            "`output_temperature_of_nobody`",
        )
    });
    for (name, own, expected) in unserved.into_iter().chain(nobodys) {
        let (_, config) = published
            .iter()
            .find(|(of, _)| *of == name)
            .expect("a file");
        let error = load(&with(config.clone(), &own)).expect_err("refused");
        assert!(error.contains(expected), "{name} {own}: {error}");
    }
    // A key that turns nothing on is none.
    for (name, config) in published {
        let own = json!({"a_feature": false, "its_factor": 0, "its_name": "", "its_list": []});
        load(&with(config, &own)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

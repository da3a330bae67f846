//! Architectures that are served from GGUF files: names of their tensors and of their families.
//!
//! llama.cpp's names and Hugging Face's differ. So does the order of some rows: where llama.cpp
//! rotates neighbouring columns, its converter moves the rows of queries and keys.

use super::error::GgufError;
use super::header::Header;
use super::tensor_type;

/// Key of the architecture.
const KEY: &str = "general.architecture";

/// An architecture.
pub(crate) struct Architecture {
    /// Name in GGUF files, and prefix of the architecture's keys.
    pub name: &'static str,
    /// Name of the family in `architectures`.
    pub class_name: &'static str,
    /// Name of the family in `model_type`.
    pub model_type: &'static str,
    /// Names of a layer's tensors below `blk.N` and below `model.layers.N`, without endings.
    pub layer: &'static [&'static [(&'static str, &'static str)]],
    /// Names of a layer's stacks of experts below `blk.N`, and of an expert's own tensor around
    /// its number.
    pub experts: &'static [(&'static str, [&'static str; 2])],
    /// True if the rows of queries and keys lie in the order of neighbouring columns.
    pub neighbours: bool,
}

/// Names outside of layers, alike in all architectures.
pub(crate) const OUTSIDE: [(&str, &str); 3] = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
];

const ATTENTION: &[(&str, &str)] = &[
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
];
const HEAD_NORMS: &[(&str, &str)] = &[
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
];
const NORMS_BEFORE: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];
const NORMS_AROUND: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];
const GATED: &[(&str, &str)] = &[
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Projections of Phi-3, of which each is several in one.
const FUSED: &[(&str, &str)] = &[
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
const MLP_ROUTER: &[(&str, &str)] = &[("ffn_gate_inp", "mlp.gate")];
const MLP_EXPERTS: &[(&str, [&str; 2])] = &[
    ("ffn_gate_exps", ["mlp.experts", "gate_proj"]),
    ("ffn_up_exps", ["mlp.experts", "up_proj"]),
    ("ffn_down_exps", ["mlp.experts", "down_proj"]),
];
const SPARSE_ROUTER: &[(&str, &str)] = &[("ffn_gate_inp", "block_sparse_moe.gate")];
const SPARSE_EXPERTS: &[(&str, [&str; 2])] = &[
    ("ffn_gate_exps", ["block_sparse_moe.experts", "w1"]),
    ("ffn_up_exps", ["block_sparse_moe.experts", "w3"]),
    ("ffn_down_exps", ["block_sparse_moe.experts", "w2"]),
];

/// Llama without experts, on which the others are built.
const LLAMA: Architecture = Architecture {
    name: "llama",
    class_name: "LlamaForCausalLM",
    model_type: "llama",
    layer: &[ATTENTION, NORMS_BEFORE, GATED],
    experts: &[],
    neighbours: true,
};

/// Llama with experts, which has the same name in GGUF files.
const MIXTRAL: Architecture = Architecture {
    class_name: "MixtralForCausalLM",
    model_type: "mixtral",
    layer: &[ATTENTION, NORMS_BEFORE, SPARSE_ROUTER],
    experts: SPARSE_EXPERTS,
    ..LLAMA
};

/// All architectures that are served.
const SERVED: [&Architecture; 7] = [
    &LLAMA,
    &Architecture {
        name: "qwen2",
        class_name: "Qwen2ForCausalLM",
        model_type: "qwen2",
        neighbours: false,
        ..LLAMA
    },
    &Architecture {
        name: "qwen3",
        class_name: "Qwen3ForCausalLM",
        model_type: "qwen3",
        layer: &[ATTENTION, HEAD_NORMS, NORMS_BEFORE, GATED],
        neighbours: false,
        ..LLAMA
    },
    &Architecture {
        name: "qwen3moe",
        class_name: "Qwen3MoeForCausalLM",
        model_type: "qwen3_moe",
        layer: &[ATTENTION, HEAD_NORMS, NORMS_BEFORE, MLP_ROUTER],
        experts: MLP_EXPERTS,
        neighbours: false,
    },
    &Architecture {
        name: "gemma2",
        class_name: "Gemma2ForCausalLM",
        model_type: "gemma2",
        layer: &[ATTENTION, NORMS_AROUND, GATED],
        neighbours: false,
        ..LLAMA
    },
    &Architecture {
        name: "gemma3",
        class_name: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        layer: &[ATTENTION, HEAD_NORMS, NORMS_AROUND, GATED],
        neighbours: false,
        ..LLAMA
    },
    &Architecture {
        name: "phi3",
        class_name: "Phi3ForCausalLM",
        model_type: "phi3",
        layer: &[FUSED, NORMS_BEFORE],
        neighbours: false,
        ..LLAMA
    },
];

impl Architecture {
    /// Finds the architecture of a model.
    ///
    /// # Errors
    /// [`GgufError::Unserved`] for another one names those that are served.
    pub fn of(header: &Header) -> Result<&'static Self, GgufError> {
        let kind = header.text("general.type")?.unwrap_or("model");
        if kind != "model" {
            let reason = format!("it holds no model but: {kind}; give the file of a model");
            return Err(GgufError::unserved(&header.name, reason));
        }
        let name = header.text(KEY)?.ok_or_else(|| header.missing(KEY))?;
        let experts = header.unsigned(&format!("{name}.expert_count"))?;
        if name == LLAMA.name && experts.is_some_and(|experts| experts > 0) {
            return Ok(&MIXTRAL);
        }
        SERVED
            .iter()
            .find(|served| served.name == name)
            .copied()
            .ok_or_else(|| {
                let reason = format!(
                    "architecture {name} is not served from GGUF files; served are {}: use a \
                     model of these, or the model's safetensors",
                    SERVED.map(|served| served.name).join(", ")
                );
                GgufError::unserved(&header.name, reason)
            })
    }
}

/// The error for a tensor of a type that is not served.
pub(crate) fn wrong_type(header: &Header, tensor: &str, kind: &str) -> GgufError {
    let reason = format!(
        "tensor {tensor} is {kind}; served are {}: use a file of these types, such as Q4_K_M",
        tensor_type::SERVED.join(", ")
    );
    GgufError::unserved(&header.name, reason)
}

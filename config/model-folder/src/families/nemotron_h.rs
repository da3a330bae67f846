//! Nemotron-H and Nemotron 3 Nano: layers that are each one block, a Mamba-2, an attention without
//! rotation, an MLP or a mixture of experts. MLPs and experts have squared ReLUs and no gates.

use lockstep_types::{
    Activation, AttentionNames, ExpertGate, ExpertTensors, ExpertsNames, ExpertsSpec,
    GatedMlpNames, LayerSpec, Mamba2Spec, Mixer, Mlp, ModelConfigError, PlainMlpNames,
    PlainMlpSpec, RopeConfig, RouterWeights, Routing, SharedExpert, TensorNames,
};
use serde_json::{Value, json};

use super::dense::Dense;
use super::{Family, Traits, activation, experts, layer_types, mamba2};
use crate::raw::Raw;

pub(super) const FAMILY: Family = Family {
    class_name: "NemotronHForCausalLM",
    model_type: "nemotron_h",
    class: || {
        json!({
            "vocab_size": 131_072,
            "hidden_size": 4096,
            "intermediate_size": 21504,
            "num_hidden_layers": 52,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 4096,
            "layer_norm_epsilon": 1e-5,
            "ssm_state_size": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "n_groups": 8,
            "conv_kernel": 4,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
            "num_experts_per_tok": 2,
        })
    },
    names: || TensorNames {
        embedding: "backbone.embeddings".to_owned(),
        layers: "backbone.layers".to_owned(),
        norm: "backbone.norm_f".to_owned(),
        mixer_norm: "norm".to_owned(),
        ..TensorNames::default()
    },
    traits: Traits {
        norm_eps: EPS,
        keys: &[
            OLDER_WIDTH,
            // Of a chunkwise form, which has other sums.
            "chunk_size",
            "conv_kernel",
            "expand",
            GROUPS,
            "hidden_dropout",
            EPS,
            "mamba_head_dim",
            "mamba_num_heads",
            "mlp_hidden_act",
            // How the work is ordered.
            "moe_shared_expert_overlap",
            SHARED,
            // The model's own draft layer, which is not served.
            "mtp_hybrid_override_pattern",
            "mtp_layers_block_type",
            "num_nextn_predict_layers",
            "n_groups",
            OLDER_EPS,
            "n_shared_experts",
            "num_logits_to_keep",
            PATTERN,
            BLOCKS,
            LATENT,
            // Of the initialisation.
            "rescale_prenorm_residual",
            // Our stream is float32.
            "residual_in_fp32",
            "routed_scaling_factor",
            "ssm_state_size",
            "time_step_limit",
            // Of the initialisation; engines bound no steps.
            "time_step_floor",
            "time_step_max",
            "time_step_min",
            "time_step_rank",
            CHOSEN,
            "use_bias",
            "use_conv_bias",
            "use_mamba_kernels",
        ],
        only: || {
            json!({"mamba_hidden_act": "silu", "mamba_proj_bias": false,
                "mamba_ssm_cache_dtype": "float32"})
        },
        ..Traits::LLAMA
    },
    layers,
};

const EPS: &str = "layer_norm_epsilon";
/// Keys that files of some ages have besides, or instead.
const OLDER_EPS: &str = "norm_eps";
const OLDER_WIDTH: &str = "attention_head_dim";
/// Keys of the kinds of layers: a letter for each layer, or a list of names.
const PATTERN: &str = "hybrid_override_pattern";
const BLOCKS: &str = "layers_block_type";
/// Keys of groups of experts.
const GROUPS: &str = "n_group";
const CHOSEN: &str = "topk_group";
/// Key for the width of experts' inputs, if that is not the stream's.
const LATENT: &str = "moe_latent_size";
/// Key for the width of the expert that every position goes through.
const SHARED: &str = "moe_shared_expert_intermediate_size";

const ATTENTION: Dense = Dense {
    norm_eps: EPS,
    activation: Activation::ReluSquared,
    attention_names: || AttentionNames {
        query: "mixer.q_proj".to_owned(),
        key: "mixer.k_proj".to_owned(),
        value: "mixer.v_proj".to_owned(),
        output: "mixer.o_proj".to_owned(),
        ..AttentionNames::default()
    },
    no_bias: &["attention_bias"],
    ..Dense::LLAMA
};

const KEYS: mamba2::Keys = mamba2::Keys {
    heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    groups: "n_groups",
    state_dim: "ssm_state_size",
    taps: "conv_kernel",
    convolution_bias: "use_conv_bias",
    bias: "use_bias",
};

/// Block of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Mamba2,
    Attention,
    Mlp,
    Experts,
}

/// Names of blocks, in files of several ages: letters, names of transformers 5 and older ones.
const BLOCKS_BY_NAME: [(&str, Block); 10] = [
    ("M", Block::Mamba2),
    ("*", Block::Attention),
    ("-", Block::Mlp),
    ("E", Block::Experts),
    ("linear_attention", Block::Mamba2),
    ("mamba", Block::Mamba2),
    ("full_attention", Block::Attention),
    ("attention", Block::Attention),
    ("mlp", Block::Mlp),
    ("moe", Block::Experts),
];

fn layers(config: &Raw) -> Result<Vec<LayerSpec>, ModelConfigError> {
    let (key, blocks) = blocks(config)?;
    let depth = config.size("num_hidden_layers")?;
    if let Some(depth) = depth.filter(|depth| *depth != blocks.len()) {
        let message = format!("names {} layers, and the model has {depth}", blocks.len());
        return Err(config.wrong(key, message));
    }
    if !blocks.contains(&Block::Attention) {
        let message = "names no layer with attention, of which a model needs one";
        return Err(config.wrong(key, message));
    }
    let mut config = config.clone();
    config.put("num_hidden_layers", blocks.len().into());
    if let Some(width) = config.size(OLDER_WIDTH)? {
        config.put("head_dim", width.into());
    }
    for key in [OLDER_EPS, "rms_norm_eps"] {
        let repeated = config.number(key)?;
        if repeated.is_some() && repeated != config.number(EPS)? {
            return Err(config.wrong(key, format!("and `{EPS}` differ; remove one of them")));
        }
    }
    let (config, mut attentions) = (&config, config.clone());
    attentions.put(layer_types::KEY, Value::Null);
    let mut layers = ATTENTION.layers_with(&attentions, |_| Mlp::None)?;
    let has = |block| blocks.contains(&block);
    let mamba = has(Block::Mamba2).then(|| mamba(config)).transpose()?;
    let mlp = has(Block::Mlp).then(|| mlp(config)).transpose()?;
    let experts = has(Block::Experts).then(|| mixture(config)).transpose()?;
    for (layer, block) in layers.iter_mut().zip(blocks) {
        if let Some(attention) = layer.attention_mut() {
            attention.rope = RopeConfig::unrotated();
        }
        match (block, &mamba, &mlp, &experts) {
            (Block::Mamba2, Some(mamba), ..) => layer.mixer = Mixer::Mamba2(mamba.clone()),
            (Block::Mlp, _, Some(mlp), _) => {
                (layer.mixer, layer.mlp) = (Mixer::None, mlp.clone());
            }
            (Block::Experts, .., Some(experts)) => {
                (layer.mixer, layer.mlp) = (Mixer::None, experts.clone());
            }
            _ => {}
        }
    }
    Ok(layers)
}

/// Reads the block of each layer, and the key that names them. There are as many layers as blocks.
fn blocks(config: &Raw) -> Result<(&'static str, Vec<Block>), ModelConfigError> {
    let named = |key: &'static str, name: &str| {
        let found = BLOCKS_BY_NAME.iter().find(|(known, _)| *known == name);
        found.map(|(_, block)| *block).ok_or_else(|| {
            config.unsupported(key, format!("layers of the kind {name:?} are not served"))
        })
    };
    for key in [BLOCKS, layer_types::KEY] {
        if let Some(list) = config.get(key) {
            let names = list.as_array().into_iter().flatten();
            let names = names.map(|name| named(key, name.as_str().unwrap_or_default()));
            return Ok((key, names.collect::<Result<_, _>>()?));
        }
    }
    let letters = config.text(PATTERN)?.unwrap_or_default();
    let mut utf8 = [0; 4];
    let blocks = letters
        .chars()
        .map(|letter| named(PATTERN, letter.encode_utf8(&mut utf8)));
    Ok((PATTERN, blocks.collect::<Result<_, _>>()?))
}

fn mamba(config: &Raw) -> Result<Mamba2Spec, ModelConfigError> {
    mamba2::read(config, &KEYS, config.required("mamba_head_dim")?, "mixer.")
}

fn mlp(config: &Raw) -> Result<Mlp, ModelConfigError> {
    activation::check(config, Activation::ReluSquared)?;
    Ok(Mlp::Plain(PlainMlpSpec {
        width: config.required("intermediate_size")?,
        activation: Activation::ReluSquared,
        bias: config.flag("mlp_bias", false)?,
        names: PlainMlpNames {
            up: "mixer.up_proj".to_owned(),
            down: "mixer.down_proj".to_owned(),
        },
    }))
}

fn mixture(config: &Raw) -> Result<Mlp, ModelConfigError> {
    if config.flag("mlp_bias", false)? {
        return Err(config.unsupported("mlp_bias", "experts are served without biases"));
    }
    if config.get(LATENT).is_some() {
        let remedy = "experts between latent projections are not served; use a model without them, \
                      such as Nemotron 3 Nano";
        return Err(config.unsupported(LATENT, remedy));
    }
    for key in [GROUPS, CHOSEN] {
        if config.size(key)?.is_some_and(|groups| groups != 1) {
            return Err(config.unsupported(key, "experts in groups are not served; it must be 1"));
        }
    }
    activation::check(config, Activation::ReluSquared)?;
    let routing = Routing {
        weights: RouterWeights::Sigmoid,
        renormalized: config.flag("norm_topk_prob", true)?,
        factor: config.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
        corrected: true,
        groups: None,
    };
    let names = ExpertsNames {
        router: "mixer.gate".to_owned(),
        correction: "mixer.gate.e_score_correction_bias".to_owned(),
        experts: ExpertTensors::Single {
            prefix: "mixer.experts".to_owned(),
            expert: GatedMlpNames::below(""),
        },
    };
    let counts = ["n_routed_experts", "num_local_experts"];
    let spec = experts::read(config, &counts, "moe_intermediate_size", routing, names)?;
    // transformers makes a shared expert of this width whatever its number is.
    let width = config.count(SHARED)?.unwrap_or(0);
    if width > 0 && config.count("n_shared_experts")? == Some(0) {
        let message = format!("and `{SHARED}` contradict each other; remove one of them");
        return Err(config.wrong("n_shared_experts", message));
    }
    if !width.is_multiple_of(spec.width) {
        let remedy = format!(
            "it is served in multiples of the experts' width, {}",
            spec.width
        );
        return Err(config.unsupported(SHARED, remedy));
    }
    Ok(Mlp::Experts(ExpertsSpec {
        gate: ExpertGate::Ungated(Activation::ReluSquared),
        shared: (width > 0).then(|| {
            Box::new(SharedExpert {
                width,
                gate: None,
                names: GatedMlpNames::below("mixer.shared_experts."),
            })
        }),
        ..spec
    }))
}

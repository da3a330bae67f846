//! Layers of latent attention, as the keys of DeepSeek's `config.json` describe them, and the
//! mixtures of experts that stand in them.

use lockstep_types::{
    ExpertGroups, ExpertsNames, ExpertsSpec, GatedMlpNames, GroupWorth, LatentAttentionNames,
    LatentAttentionSpec, LayerSpec, Mixer, Mlp, ModelConfigError, Norms, Routing, SharedExpert,
};

use super::dense::{Dense, depth};
use super::layer_types::LayerType;
use super::{activation, experts, norm_eps, rope};
use crate::raw::Raw;

/// Keys of all these families, beside those of all models.
pub(super) const KEYS: [&str; 11] = [
    "first_k_dense_replace",
    "kv_lora_rank",
    "n_group",
    "n_shared_experts",
    "q_lora_rank",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "routed_scaling_factor",
    "topk_group",
    "v_head_dim",
];

/// Adds a family's own keys to those of all families of latent attention.
pub(super) const fn with_own<const OWN: usize, const ALL: usize>(
    own: [&'static str; OWN],
) -> [&'static str; ALL] {
    let mut all = [""; ALL];
    let mut at = 0;
    while at < ALL {
        all[at] = if at < OWN { own[at] } else { KEYS[at - OWN] };
        at += 1;
    }
    all
}

/// Added to the mean square in the norms of latents, whatever the other norms of the model add.
const LATENT_EPS: f32 = 1e-6;
/// Most believable heads. More are damage, and would fill the memory with their names alone.
const MOST_HEADS: usize = 1 << 12;

/// Reads the attention that all layers have.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or asks for a feature that is not served.
pub(super) fn attention(config: &Raw) -> Result<LatentAttentionSpec, ModelConfigError> {
    const HEADS: &str = "num_attention_heads";
    const KV_HEADS: &str = "num_key_value_heads";
    const ROTATED: &str = "qk_rope_head_dim";
    activation::check(config, lockstep_types::Activation::Silu)?;
    let heads = config.required(HEADS)?;
    if heads > MOST_HEADS {
        return Err(config.wrong(HEADS, format!("is {heads}, beyond any model's heads")));
    }
    if config.size(KV_HEADS)?.is_some_and(|kv| kv != heads) {
        let remedy = format!("each of the {heads} heads has a key of its own; it must be {heads}");
        return Err(config.unsupported(KV_HEADS, remedy));
    }
    let rotated = config.required(ROTATED)?;
    if !rotated.is_multiple_of(2) {
        let message = format!("is {rotated}; rotary embedding needs an even width");
        return Err(config.wrong(ROTATED, message));
    }
    let nope = config.required("qk_nope_head_dim")?;
    let rope = rope::read(config, LayerType::Full)?;
    if let Some(long) = &rope.long {
        rope::fits(config, long, rotated)?;
    }
    let growth = rope::growth(config)?;
    Ok(LatentAttentionSpec {
        heads,
        nope,
        rotated,
        latent: config.required("kv_lora_rank")?,
        value: config.required("v_head_dim")?,
        query_latent: config.size("q_lora_rank")?,
        scale: (growth * growth / ((nope + rotated) as f64).sqrt()) as f32,
        rope,
        interleaved: config.flag("rope_interleave", true)?,
        bias: config.flag("attention_bias", false)?,
        norm_eps: LATENT_EPS,
        names: LatentAttentionNames::default(),
    })
}

/// Reads the mixture that layers have, with the rule `routing`. Experts are in groups that are
/// worth `worth`; `None` if they are in none, whatever the keys of groups say.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or keys contradict each other.
pub(super) fn mixture(
    config: &Raw,
    routing: Routing,
    worth: Option<GroupWorth>,
) -> Result<ExpertsSpec, ModelConfigError> {
    let counts = ["n_routed_experts", "num_local_experts", "num_experts"];
    let width = "moe_intermediate_size";
    let mut spec = experts::read(config, &counts, width, routing, ExpertsNames::of_mlp())?;
    spec.routing.groups = match worth {
        Some(worth) => groups(config, &spec, worth)?,
        None => None,
    };
    let shared = config.count("n_shared_experts")?.unwrap_or(0);
    spec.shared = (shared > 0).then(|| {
        Box::new(SharedExpert {
            width: shared.saturating_mul(spec.width),
            gate: None,
            names: GatedMlpNames::below("mlp.shared_experts."),
        })
    });
    Ok(spec)
}

/// Reads the groups of experts; `None` if all are in one.
fn groups(
    config: &Raw,
    spec: &ExpertsSpec,
    worth: GroupWorth,
) -> Result<Option<ExpertGroups>, ModelConfigError> {
    const COUNT: &str = "n_group";
    const CHOSEN: &str = "topk_group";
    let count = config.size(COUNT)?.unwrap_or(1);
    let chosen = config.size(CHOSEN)?.unwrap_or(1);
    if count == 1 {
        return Ok(None);
    }
    if count > ExpertGroups::MOST || !spec.count.is_multiple_of(count) {
        let message = format!(
            "is {count}, and {} experts are in up to {} groups of as many",
            spec.count,
            ExpertGroups::MOST
        );
        return Err(config.wrong(COUNT, message));
    }
    let size = spec.count / count;
    if worth == GroupWorth::TwoLargest && size < 2 {
        let message = format!("is {count}, and groups have two experts or more");
        return Err(config.wrong(COUNT, message));
    }
    if chosen > count || chosen * size < spec.active {
        let message = format!(
            "is {chosen} of {count} groups of {size}, from which {} experts are chosen",
            spec.active
        );
        return Err(config.wrong(CHOSEN, message));
    }
    Ok(Some(ExpertGroups {
        count,
        chosen,
        worth,
    }))
}

/// Returns the layers of `attention`, with gated MLPs where a layer `is_dense`, and `experts`
/// elsewhere.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged.
pub(super) fn layers(
    config: &Raw,
    attention: &LatentAttentionSpec,
    experts: &ExpertsSpec,
    is_dense: impl Fn(usize) -> bool,
) -> Result<Vec<LayerSpec>, ModelConfigError> {
    const BIAS: &str = "mlp_bias";
    if config.flag(BIAS, false)? {
        return Err(config.unsupported(BIAS, "the family has no such bias; remove the key"));
    }
    let gated = Dense::LLAMA.gated(config)?;
    let rms_norm_eps = norm_eps(config, "rms_norm_eps")?;
    let layer = |number| LayerSpec {
        mixer: Mixer::LatentAttention(attention.clone()),
        mlp: match is_dense(number) {
            true => gated.clone(),
            false => Mlp::Experts(experts.clone()),
        },
        norms: Norms::Before,
        rms_norm_eps,
        scale: 1.0,
    };
    Ok((0..depth(config)?).map(layer).collect())
}

/// Reads the number of the first layers, which are dense.
///
/// # Errors
/// [`ModelConfigError`]: the value is no count.
pub(super) fn first_dense(config: &Raw) -> Result<usize, ModelConfigError> {
    Ok(config.count("first_k_dense_replace")?.unwrap_or(0))
}

//! Mixtures of experts, as the keys of `config.json` describe them.

use lockstep_types::{ExpertGate, ExpertsNames, ExpertsSpec, ModelConfigError, Routing};

use super::dense;
use crate::raw::Raw;

/// Most believable experts of a whole model. More are damage, and would fill the memory with
/// their names alone.
const MOST_EXPERTS: usize = 1 << 17;
/// Key for the number of experts that a position goes through.
const ACTIVE: &str = "num_experts_per_tok";

/// Reads the mixture of experts that layers have. The number of experts has one of the `counts`
/// as its key, and the width of an expert has `width`.
///
/// # Errors
/// [`ModelConfigError`]: a key is missing or damaged, or keys contradict each other.
pub(super) fn read(
    config: &Raw,
    counts: &[&str],
    width: &str,
    routing: Routing,
    names: ExpertsNames,
) -> Result<ExpertsSpec, ModelConfigError> {
    read_active(config, counts, ACTIVE, width, routing, names)
}

/// Does so where the number of experts that a position goes through has the key `active_key`.
///
/// # Errors
/// The errors of [`read`].
pub(super) fn read_active(
    config: &Raw,
    counts: &[&str],
    active_key: &str,
    width: &str,
    routing: Routing,
    names: ExpertsNames,
) -> Result<ExpertsSpec, ModelConfigError> {
    let count = count(config, counts)?;
    let active = config.required(active_key)?;
    if active > count {
        let message = format!("is {active}, and there are {count} experts");
        return Err(config.wrong(active_key, message));
    }
    Ok(ExpertsSpec {
        count,
        active,
        width: config.required(width)?,
        gate: ExpertGate::Silu,
        routing,
        router_bias: false,
        scales: None,
        shared: None,
        names,
    })
}

/// Reads the number of a layer's experts.
fn count(config: &Raw, keys: &[&str]) -> Result<usize, ModelConfigError> {
    let mut found: Option<(&str, usize)> = None;
    for key in keys {
        match (config.size(key)?, found) {
            (Some(count), Some((other, first))) if count != first => {
                let message = format!("is {count}, and `{other}` is {first}");
                return Err(config.wrong(key, message));
            }
            (Some(count), None) => found = Some((key, count)),
            _ => {}
        }
    }
    let missing = keys.first().copied().unwrap_or_default();
    let (key, count) = found.ok_or_else(|| config.wrong(missing, "is missing"))?;
    if count.saturating_mul(dense::depth(config)?) > MOST_EXPERTS {
        return Err(config.wrong(key, format!("is {count}, beyond any model's experts")));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use lockstep_types::{
        ExpertTensors, GatedMlpNames, LayerSpec, Mlp, QkNorm, RouterWeights, Routing,
    };
    use serde_json::{Value, json};

    use crate::testing::{folder, llama, with};

    const MIXTRAL: &str = "MixtralForCausalLM";
    const QWEN3: &str = "Qwen3MoeForCausalLM";
    const GLM: &str = "Glm4MoeForCausalLM";
    const MINIMAX: &str = "MiniMaxM2ForCausalLM";

    /// Reads the layers of a small model of `class` with four layers.
    fn load(class: &str, changes: &Value) -> Result<Vec<LayerSpec>, String> {
        let own = json!({"architectures": [class], "num_hidden_layers": 4});
        let dir = folder(&with(with(llama(), &own), changes), None);
        let model = crate::load(dir.path()).map_err(|error| error.to_string())?;
        Ok(model.layers)
    }

    /// Returns count, active, width and renormalisation of each layer's experts.
    fn experts(class: &str, changes: &Value) -> Vec<Option<(usize, usize, usize, bool)>> {
        let layers = load(class, changes).unwrap_or_else(|error| panic!("{changes}: {error}"));
        let experts = layers.into_iter().map(|layer| match layer.mlp {
            Mlp::Gated(gated) => {
                assert_eq!(gated.width, 96);
                None
            }
            Mlp::Experts(spec) => Some((
                spec.count,
                spec.active,
                spec.width,
                spec.routing.renormalized,
            )),
            Mlp::Plain(_) | Mlp::Parallel(_) | Mlp::None => panic!("no MLP of these families"),
        });
        experts.collect()
    }

    #[test]
    fn each_family_has_its_own_keys_and_defaults() {
        let found = experts(MIXTRAL, &json!({"sliding_window": null}));
        assert_eq!(found, [Some((8, 2, 96, true)); 4]);
        let own = json!({"num_local_experts": 6, "num_experts_per_tok": 6});
        assert_eq!(experts(MIXTRAL, &own), [Some((6, 6, 96, true)); 4]);
        let said = json!({"norm_topk_prob": true});
        assert_eq!(experts(MIXTRAL, &said), [Some((8, 2, 96, true)); 4]);
        let found = experts(QWEN3, &json!({"use_sliding_window": false}));
        assert_eq!(found, [Some((128, 8, 768, false)); 4]);
        let own = json!({"num_experts": 9, "num_experts_per_tok": 3, "norm_topk_prob": true,
            "moe_intermediate_size": 28});
        assert_eq!(experts(QWEN3, &own), [Some((9, 3, 28, true)); 4]);
        // transformers 5 has one key for all families, and may write both.
        let same = with(
            own.clone(),
            &json!({"num_experts": "(absent)", "num_local_experts": 9}),
        );
        assert_eq!(experts(QWEN3, &same), experts(QWEN3, &own));
        let both = with(own.clone(), &json!({"num_local_experts": 9}));
        assert_eq!(experts(QWEN3, &both), experts(QWEN3, &own));
    }

    #[test]
    fn some_layers_of_qwen3_are_dense() {
        for (own, dense) in [
            (json!({}), vec![]),
            (json!({"mlp_only_layers": null}), vec![]),
            (json!({"mlp_only_layers": []}), vec![]),
            (json!({"mlp_only_layers": [0, 2]}), vec![0, 2]),
            (json!({"decoder_sparse_step": 2}), vec![0, 2]),
            (json!({"decoder_sparse_step": 3}), vec![0, 1, 3]),
            (
                json!({"decoder_sparse_step": 2, "mlp_only_layers": [1, 7]}),
                vec![0, 1, 2],
            ),
        ] {
            let found = experts(QWEN3, &own);
            let found: Vec<_> = (0..4).filter(|layer| found[*layer].is_none()).collect();
            assert_eq!(found, dense, "{own}");
        }
        // All layers may be dense.
        assert_eq!(
            experts(QWEN3, &json!({"decoder_sparse_step": 9})),
            [None; 4]
        );
    }

    #[test]
    fn names_are_those_of_the_families() {
        let names = |class: &str| match load(class, &json!({})).expect("served").pop() {
            Some(LayerSpec {
                mlp: Mlp::Experts(spec),
                ..
            }) => spec.names,
            _ => panic!("no experts"),
        };
        let mixtral = names(MIXTRAL);
        assert_eq!(mixtral.router, "block_sparse_moe.gate");
        let ExpertTensors::Single { prefix, expert } = mixtral.experts else {
            panic!("experts with tensors of their own");
        };
        assert_eq!(prefix, "block_sparse_moe.experts");
        let GatedMlpNames { gate, up, down } = expert;
        assert_eq!([gate, up, down], ["w1", "w3", "w2"]);
        let qwen3 = names(QWEN3);
        let ExpertTensors::Single { prefix, expert } = qwen3.experts else {
            panic!("experts with tensors of their own");
        };
        assert_eq!(
            (qwen3.router.as_str(), prefix.as_str()),
            ("mlp.gate", "mlp.experts")
        );
        let GatedMlpNames { gate, up, down } = expert;
        assert_eq!([gate, up, down], ["gate_proj", "up_proj", "down_proj"]);
    }

    #[test]
    fn all_layers_have_the_window_of_the_family() {
        for (class, own, window) in [
            (MIXTRAL, json!({}), None),
            (MIXTRAL, json!({"sliding_window": 128}), Some(128)),
            (QWEN3, json!({"sliding_window": 64}), None),
            (
                QWEN3,
                json!({"use_sliding_window": true, "sliding_window": 64, "max_window_layers": 4}),
                Some(64),
            ),
        ] {
            let layers = load(class, &own).expect("good");
            let found = layers.iter().map(|layer| layer.attention().unwrap().window);
            let found: Vec<_> = found.map(|window| window.map(usize::from)).collect();
            assert_eq!(found, [window; 4], "{class} {own}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named_by_its_key() {
        for (class, own, key) in [
            (
                MIXTRAL,
                json!({"num_local_experts": 0}),
                "`num_local_experts` is 0",
            ),
            (
                MIXTRAL,
                json!({"num_local_experts": 8, "num_experts": 4}),
                "`num_experts` is 4",
            ),
            (
                MIXTRAL,
                json!({"num_experts_per_tok": 9}),
                "`num_experts_per_tok` is 9",
            ),
            (
                MIXTRAL,
                json!({"num_experts_per_tok": null}),
                "`num_experts_per_tok` is missing",
            ),
            (MIXTRAL, json!({"mlp_bias": true}), "`mlp_bias`"),
            (
                QWEN3,
                json!({"num_experts": 1_000_000}),
                "beyond any model's experts",
            ),
            (
                QWEN3,
                json!({"num_experts": 2, "num_experts_per_tok": 3}),
                "there are 2 experts",
            ),
            (
                QWEN3,
                json!({"moe_intermediate_size": 0}),
                "`moe_intermediate_size` is 0",
            ),
            (
                QWEN3,
                json!({"decoder_sparse_step": 0}),
                "`decoder_sparse_step` is 0",
            ),
            (
                QWEN3,
                json!({"mlp_only_layers": 1}),
                "`mlp_only_layers` is 1",
            ),
            (QWEN3, json!({"mlp_only_layers": [-1]}), "`mlp_only_layers`"),
            (QWEN3, json!({"norm_topk_prob": 1}), "`norm_topk_prob` is 1"),
            (
                "Qwen3ForCausalLM",
                json!({"num_experts": 8}),
                "the family has no experts",
            ),
        ] {
            let error = load(class, &own).expect_err("refused");
            assert!(error.contains(key), "{own}: {error}");
        }
    }

    #[test]
    fn routes_and_rotations_that_are_not_served_are_named_by_their_key() {
        for (class, own, key) in [
            (GLM, json!({"n_group": 8}), "`n_group`"),
            (GLM, json!({"topk_group": 4}), "`topk_group`"),
            (
                GLM,
                json!({"n_shared_experts": -1}),
                "`n_shared_experts` is -1",
            ),
            (
                GLM,
                json!({"partial_rotary_factor": 1.5}),
                "`partial_rotary_factor`",
            ),
            (
                GLM,
                json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
                "`partial_rotary_factor`",
            ),
            (MINIMAX, json!({"rotary_dim": 7}), "`rotary_dim` rotates 7"),
            (MINIMAX, json!({"attention_bias": true}), "`attention_bias`"),
            (
                MINIMAX,
                json!({"norm_topk_prob": false}),
                "`norm_topk_prob`",
            ),
            (
                MINIMAX,
                json!({"scoring_func": "softmax"}),
                "`scoring_func`",
            ),
            (
                MIXTRAL,
                json!({"norm_topk_prob": false}),
                "`norm_topk_prob`",
            ),
        ] {
            let error = load(class, &own).expect_err("refused");
            assert!(error.contains(key), "{own}: {error}");
        }
    }

    #[test]
    fn glm_has_dense_layers_first_and_a_shared_expert() {
        let own = json!({"n_routed_experts": 6, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 3,
            "routed_scaling_factor": 2.5, "attention_bias": true, "use_qk_norm": true});
        let layers = load(GLM, &own).expect("served");
        for layer in &layers {
            let attention = layer.attention().unwrap();
            assert_eq!(attention.rope.rotated, Some(attention.head_dim / 2));
            assert_eq!(attention.qk_norm, QkNorm::PerHead);
            assert!(attention.qkv_bias && !attention.output_bias);
        }
        assert!(matches!(&layers[2].mlp, Mlp::Gated(gated) if gated.width == 96));
        let Mlp::Experts(spec) = &layers[3].mlp else {
            panic!("the last layer has experts");
        };
        assert_eq!((spec.count, spec.active, spec.width), (6, 2, 24));
        assert_eq!(spec.shared.as_ref().map(|shared| shared.width), Some(48));
        assert_eq!((spec.total(), spec.taken()), (8, 4));
        let expected = Routing {
            weights: RouterWeights::Sigmoid,
            renormalized: true,
            factor: 2.5,
            corrected: true,
            groups: None,
        };
        assert_eq!(spec.routing, expected);
        let without = with(
            own,
            &json!({"n_shared_experts": 0, "first_k_dense_replace": 0}),
        );
        for layer in load(GLM, &without).expect("served") {
            assert!(matches!(layer.mlp, Mlp::Experts(spec) if spec.shared.is_none()));
        }
    }

    #[test]
    fn minimax_says_in_two_ways_what_it_rotates() {
        for (own, rotated) in [
            (json!({"head_dim": 16, "rotary_dim": 8}), Some(8)),
            (json!({"head_dim": 16, "rotary_dim": 16}), None),
            (json!({"head_dim": 16}), None),
            (
                json!({"head_dim": 16, "rotary_dim": 8, "partial_rotary_factor": 0.25}),
                Some(4),
            ),
            (
                json!({"head_dim": 16, "rope_parameters":
                    {"rope_type": "default", "partial_rotary_factor": 0.5}}),
                Some(8),
            ),
        ] {
            for layer in load(MINIMAX, &own).expect("served") {
                assert_eq!(layer.attention().unwrap().rope.rotated, rotated, "{own}");
                assert_eq!(layer.attention().unwrap().qk_norm, QkNorm::Whole);
            }
        }
    }
}

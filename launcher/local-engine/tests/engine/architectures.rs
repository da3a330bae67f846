//! Random models of every architecture in the whole engine. Logits are checked in the
//! model's own tests. These tests check that configuration, shards, plans and sampling fit
//! every shape.

use lockstep_config::args::DeviceArg;
use lockstep_local_engine::Completion;
use lockstep_types::sampling::SamplingParams;
use lockstep_types::{DeviceKind, Dtype};

use crate::{
    goldens::{RandomModel, random_model},
    reference::common,
    same::assert_same_output,
    setup::{Setup, alone, cached, flush, reported, together},
};

/// Folders of models.
const MODELS: [&str; 69] = [
    "llama",
    "llama3_rope",
    "llama3_rope_new_config",
    "llama_bias",
    "llama_f16",
    "llama_f32",
    "llama_linear_rope",
    "llama_sharded",
    "mistral",
    "mistral_sliding_window",
    "qwen2",
    "qwen2_untied",
    "qwen3",
    "qwen3_untied",
    "llava",
    "phi3",
    "qwen2_5_vl",
    "qwen2_windows",
    "qwen3_windows",
    "phi3_window",
    "phi4_longrope",
    "phi3_longrope_short",
    "llama_fp8",
    "phi3_fp8",
    "qwen3_fp8",
    "qwen3_moe_fp8",
    "llama_fp8_modelopt",
    "mixtral",
    "qwen3_moe",
    "qwen3_moe_sparse_step",
    "glm4_moe",
    "minimax_m2",
    "granite_moe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "granite",
    "smollm3",
    "smollm3_windows",
    "olmo2",
    "olmo3",
    "gemma2",
    "gemma3",
    "gemma3_old_config",
    "gemma3_wrapped",
    "gemma4",
    "gemma4_wrapped",
    "gemma4_shared",
    "gemma4_per_layer",
    "gemma4_per_layer_wrapped",
    "gemma4_moe",
    "starcoder2",
    "ministral3",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v3_fp8",
    "glm4_moe_lite",
    "mistral4",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_wrapped",
    "qwen3_next",
    "granite_hybrid",
    "granite_hybrid_moe",
    "lfm2",
    "lfm2_bias",
    "lfm2_moe",
    "nemotron_h",
    "nemotron_h_moe",
];

/// Largest error in float32: sums in another order than torch's stay well below it.
const FLOAT32_ERROR: f32 = 1e-3;

#[test]
fn float32() {
    for (i, name) in MODELS.into_iter().enumerate() {
        model(name, Dtype::Float32, i);
    }
}

#[test]
fn bfloat16() {
    for (i, name) in MODELS.into_iter().enumerate() {
        model(name, Dtype::Bfloat16, i + 1);
    }
}

/// Mixtures of experts, latent attention and recurrent layers run on GPUs. Weights in 8-bit floats
/// and in integers don't, nor do experts of 28 columns that four ranks divide, or two where there are no gates, and
/// some layers, and the start says so before anything is loaded.
#[test]
fn gpus_serve_most_layers_and_refuse_others_by_name() {
    for (name, ranks, why) in [
        ("mixtral", 1, None),
        ("glm4_moe", 1, None),
        ("qwen3_moe", 2, None),
        ("qwen3_moe", 4, Some("experts of 7 columns on a rank")),
        ("qwen3_fp8", 1, None),
        ("llama_gptq", 1, None),
        ("deepseek_v3", 2, None),
        ("mistral4", 1, None),
        ("gemma4", 1, None),
        ("gpt_oss", 2, None),
        ("gpt_oss_mxfp4", 2, None),
        ("qwen3_5", 1, None),
        ("qwen3_next", 2, None),
        ("granite_hybrid", 1, None),
        ("granite_hybrid_moe", 2, None),
        ("lfm2", 1, None),
        ("lfm2_moe", 2, None),
        ("gemma4_per_layer", 2, None),
        ("gemma4_moe", 1, None),
        ("nemotron_h_moe", 1, None),
        ("nemotron_h_moe", 2, Some("experts of 14 columns on a rank")),
    ] {
        let setup = Setup {
            context: 256,
            ..Setup::random(name, Dtype::Bfloat16, ranks)
        };
        let error = setup.config_on(DeviceArg::Cuda).err();
        let served = why.is_none();
        assert_eq!(error.is_none(), served, "{name}: {error:?}");
        if let (Some(error), Some(why)) = (error, why) {
            let error = error.to_string();
            assert!(
                error.contains(why) && error.contains("--device cpu"),
                "{error}"
            );
        }
        let chosen = setup.config_on(DeviceArg::Auto).unwrap().device.kind;
        assert_eq!(chosen == DeviceKind::Cuda, served, "{name}");
    }
}

/// Runs one model in a setup that depends on `turn`.
fn model(name: &str, dtype: Dtype, turn: usize) {
    let setup = Setup {
        page: [64, 1, 16][turn / 3 % 3],
        chunk: [Some(7), None, Some(64), Some(1)][turn % 4],
        overlap: turn.is_multiple_of(2),
        ..Setup::random(name, dtype, [1, 2, 4][turn % 3])
    };
    let golden = random_model(name);
    let mut engine = setup.start();
    let requests = |start| {
        let greedy = SamplingParams {
            ignore_eos: true,
            ..SamplingParams::greedy()
        };
        let prompts = golden.prompts.iter();
        let request = prompts.map(|prompt| {
            let new = prompt.greedy_ids.len() as u32;
            reported(&prompt.ids, new, greedy.clone(), start)
        });
        request.collect::<Vec<_>>()
    };
    let cold = together(&mut engine, requests(Some(0)));
    check(&format!("{name}, {setup:?}"), dtype, &golden, &cold);
    let warm = alone(&mut engine, requests(None));
    for (i, warm) in warm.iter().enumerate() {
        assert_same_output(&format!("prompt {i}, {name}, {setup:?}"), warm, &cold[i]);
        let longest = golden.prompts[i].ids.len() - 1;
        assert_eq!(cached(warm) as usize, longest / setup.page * setup.page);
    }
    flush(&mut engine);
}

/// Checks greedy tokens wherever the reference's margin is clear, and the prompts'
/// log-probabilities.
fn check(what: &str, dtype: Dtype, golden: &RandomModel, answers: &[Completion]) {
    assert!(!golden.prompts.is_empty());
    let error = match dtype {
        Dtype::Float32 => FLOAT32_ERROR,
        Dtype::Bfloat16 => golden.bf16_max_logit_error,
    };
    for (answer, prompt) in answers.iter().zip(&golden.prompts) {
        let same = common(&answer.token_ids, &prompt.greedy_ids);
        if same < prompt.greedy_ids.len() {
            let gap = prompt.greedy_top2_gaps[same];
            let routed = prompt.is_routed_alike(prompt.ids.len() - 1 + same, error);
            assert!(
                gap <= 2.0 * error || !routed,
                "{what}: token {same}, gap {gap}"
            );
        }
        let scored = &answer.prompt_logprobs[1..];
        assert_eq!(scored.len(), prompt.prompt_logprobs.len());
        let scored = scored.iter().zip(&prompt.prompt_logprobs).enumerate();
        for (_, (found, expected)) in scored.filter(|(at, _)| prompt.is_routed_alike(*at, error)) {
            let off = (found.logprob.unwrap() - expected).abs();
            assert!(off <= 2.0 * error, "{what}: a prompt's is off by {off}");
        }
    }
}

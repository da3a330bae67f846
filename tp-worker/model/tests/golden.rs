//! Golden gates: every architecture against Hugging Face transformers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/adapted.rs"]
mod adapted;
#[path = "golden/adapters.rs"]
mod adapters;
#[path = "golden/chunks.rs"]
mod chunks;
#[path = "golden/cuda.rs"]
mod cuda;
#[path = "golden/cuda_company.rs"]
mod cuda_company;
#[path = "golden/cuda_experts.rs"]
mod cuda_experts;
#[path = "golden/cuda_ranks.rs"]
mod cuda_ranks;
#[path = "golden/cuda_recurrent.rs"]
mod cuda_recurrent;
#[path = "golden/data_parallel.rs"]
mod data_parallel;
#[path = "support/driver.rs"]
mod driver;
#[path = "golden/dummy.rs"]
mod dummy;
#[path = "golden/experts_by_number.rs"]
mod experts_by_number;
#[path = "golden/faults.rs"]
mod faults;
#[path = "golden/gguf.rs"]
mod gguf;
#[path = "support/groups.rs"]
mod groups;
#[path = "golden/integers.rs"]
mod integers;
#[path = "support/naive.rs"]
mod naive;
#[path = "support/pass.rs"]
mod pass;
#[path = "support/ranks.rs"]
mod ranks;
#[path = "golden/scales.rs"]
mod scales;
#[path = "golden/two_caches.rs"]
mod two_caches;
#[path = "support/world.rs"]
mod world;

use std::{fs, sync::Arc};

use driver::{Factory, Feed, logits};
use lockstep_backend_cpu::{CpuBackend, CpuOptions, Isa};
use lockstep_types::{
    CheckpointFormat, Dtype, KvCacheDtype, LayerSpec, Mixer, ModelConfig, Quantization,
};
use naive::Naive;
use pass::fixture;

#[derive(serde::Deserialize)]
struct Golden {
    bf16_max_logit_error: f32,
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    ids: Vec<u32>,
    prompt_logprobs: Vec<f32>,
    last_logits: Vec<f32>,
    last_logits_bf16: Vec<f32>,
    greedy_ids: Vec<u32>,
    greedy_top2_gaps: Vec<f32>,
    /// Lead of the last chosen expert at each position; empty where it does not matter.
    #[serde(default)]
    route_margins: Vec<f32>,
}

impl Prompt {
    /// Returns true if logits that are off by `tolerance` leave the experts of a position alone.
    /// What decides about experts is a tenth as far off, as sigmoids are flat.
    fn is_routed_alike(&self, position: usize, tolerance: f32) -> bool {
        let margin = self.route_margins.get(position);
        margin.is_none_or(|margin| *margin > 0.1 * tolerance)
    }
}

struct Case {
    model: ModelConfig,
    golden: Golden,
}

impl Case {
    /// Returns true for a model with norms behind its blocks.
    fn norms_outputs(&self) -> bool {
        self.model.layers.iter().any(|layer| layer.norms.after())
    }

    /// Returns true for a model of latent attention, whose cache has floats alone.
    fn has_latents(&self) -> bool {
        self.model.latent_attentions().next().is_some()
    }

    /// Returns true if GPUs serve caches of the type: whole units of 16 bytes for a latent.
    fn caches_on_gpus(&self, cached: KvCacheDtype) -> bool {
        let mut latents = self.model.latent_attentions();
        latents.all(|own| {
            cached
                .row_bytes(own.latent + own.rotated)
                .is_multiple_of(16)
        })
    }

    /// Returns true for a model with short convolutions.
    fn has_short_convolutions(&self) -> bool {
        let short = |layer: &LayerSpec| matches!(layer.mixer, Mixer::ShortConvolution(_));
        self.model.layers.iter().any(short)
    }

    /// Returns true for a mixture of experts.
    fn is_mixture(&self) -> bool {
        let mixed = |layer: &LayerSpec| layer.mlp.experts().is_some();
        self.model.layers.iter().any(mixed)
    }
}

/// Logits here stay below 16, whose float32 spacing is 1e-6. They are sums of a few hundred
/// terms in another order than torch's, through three layers, and were seen to differ by less
/// than 1e-4. The rotary table is rounded to f32, while torch computes it from f32
/// frequencies. That adds as much at the longest prompts.
const F32_TOLERANCE: f32 = 2e-4;
/// Smallest gap of two logits that their errors can't close.
const F32_CLEAR_GAP: f32 = 2.0 * F32_TOLERANCE;

/// Folders of the fixtures.
const CASES: [&str; 69] = [
    "llama",
    "llama3_rope",
    "llama3_rope_new_config",
    "llama_bias",
    "llama_f16",
    "llama_f32",
    "llama_linear_rope",
    "llama_sharded",
    "llava",
    "mistral",
    "mistral_sliding_window",
    "phi3",
    "phi3_window",
    "phi4_longrope",
    "phi3_longrope_short",
    "qwen2",
    "qwen2_untied",
    "qwen2_windows",
    "qwen2_5_vl",
    "qwen3",
    "qwen3_untied",
    "qwen3_windows",
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
    "granite_hybrid",
    "granite_hybrid_moe",
    "lfm2",
    "lfm2_bias",
    "lfm2_moe",
    "nemotron_h",
    "nemotron_h_moe",
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
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_wrapped",
    "qwen3_next",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v3_fp8",
    "glm4_moe_lite",
    "mistral4",
];

/// Cases whose layers compute what those of other cases compute. They differ in names, files or
/// classes, in the rotary table, or in the type of the checkpoint's floats.
const ALIKE: [&str; 18] = [
    "llama3_rope_new_config",
    "llama_f16",
    "llama_f32",
    "llama_linear_rope",
    "llama_sharded",
    "llava",
    "mistral",
    "phi3",
    "phi3_window",
    "phi3_longrope_short",
    "qwen2_5_vl",
    "qwen3_untied",
    "qwen3_windows",
    "gemma3_old_config",
    "gemma3_wrapped",
    "gemma4_wrapped",
    "gemma4_per_layer_wrapped",
    "qwen3_5_moe_wrapped",
];

/// Reads the cases that are not [`ALIKE`], for tests of how layers compute. What is alike is read
/// and split by the gates of [`cases`].
fn distinct() -> impl Iterator<Item = (&'static str, Case)> {
    let names = CASES.into_iter().filter(|name| !ALIKE.contains(name));
    names.map(|name| (name, case(name)))
}

fn cases() -> impl Iterator<Item = (&'static str, Case)> {
    CASES.into_iter().map(|name| (name, case(name)))
}

/// Reads a case.
fn case(name: &str) -> Case {
    let folder = fixture(name);
    let text = fs::read(folder.join("golden.json")).unwrap();
    Case {
        model: lockstep_model_folder::load(&folder).unwrap(),
        golden: serde_json::from_slice(&text).unwrap(),
    }
}

/// Reads some cases. Reading all takes longer than most tests.
fn named(names: &[&'static str]) -> impl Iterator<Item = (&'static str, Case)> {
    names.iter().map(|name| (*name, case(name)))
}

/// Checkpoints of 8-bit floats that are read on GPUs too: with scales of blocks, in stacks of
/// experts, and with inputs before outputs. Others differ on the host alone.
const FP8_ON_GPUS: [&str; 3] = ["llama_fp8", "qwen3_moe_fp8", "deepseek_v3_fp8"];

/// Returns the distinct cases for GPUs.
fn cases_on_gpus() -> impl Iterator<Item = (&'static str, Case)> {
    distinct().filter(|(name, case)| {
        let fp8 = matches!(case.model.checkpoint, CheckpointFormat::Fp8(_));
        !fp8 || FP8_ON_GPUS.contains(name)
    })
}

fn cpu(dtype: Dtype) -> Factory<CpuBackend> {
    on(None, dtype)
}

/// Returns `model`, to be loaded with `quantization`.
fn rounded(model: &ModelConfig, quantization: Quantization) -> ModelConfig {
    ModelConfig {
        quantization,
        ..model.clone()
    }
}

/// Returns the kernels chosen on this machine, and those with the bits of AMX, if they can
/// run here. The latter give the bits of AMX on every machine.
fn kernels() -> impl Iterator<Item = Option<Isa>> {
    let emulated = Isa::AmxEmulated.is_available();
    [None, emulated.then_some(Isa::AmxEmulated)]
        .into_iter()
        .take(1 + usize::from(emulated))
}

fn on(isa: Option<Isa>, dtype: Dtype) -> Factory<CpuBackend> {
    Arc::new(move |collective| {
        let options = CpuOptions {
            threads: 1,
            dtype,
            pin: None,
            isa,
        };
        CpuBackend::new(options, collective).unwrap()
    })
}

fn naive() -> Factory<Naive> {
    Arc::new(Naive::new)
}

/// Returns prompt and greedy continuation of every prompt. The last token is never fed.
fn texts(golden: &Golden) -> Vec<Vec<u32>> {
    let text = |prompt: &Prompt| {
        let mut text = prompt.ids.clone();
        text.extend(&prompt.greedy_ids[..prompt.greedy_ids.len() - 1]);
        text
    };
    golden.prompts.iter().map(text).collect()
}

fn logprob(logits: &[f32], token: u32) -> f32 {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits[token as usize] - max - sum.ln() as f32
}

fn argmax(logits: &[f32]) -> u32 {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    logits.iter().position(|l| *l == max).unwrap() as u32
}

fn max_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Checks one run: the last prompt logits within `tolerance`, prompt log-probabilities within
/// twice that, and greedy tokens wherever the reference's gap exceeds `clear_gap`.
fn check(name: &str, golden: &Golden, logits: &[Vec<Vec<f32>>], tolerance: f32, clear_gap: f32) {
    for (prompt, logits) in golden.prompts.iter().zip(logits) {
        let last = prompt.ids.len() - 1;
        let error = max_error(&logits[last], &prompt.last_logits);
        assert!(
            error <= tolerance,
            "{name}: logits off by {error} > {tolerance}"
        );
        for (i, expected) in prompt.prompt_logprobs.iter().enumerate() {
            if !prompt.is_routed_alike(i, tolerance) {
                continue;
            }
            let found = logprob(&logits[i], prompt.ids[i + 1]);
            // Both the logit and the normalizer may be off.
            let error = (found - expected).abs();
            assert!(
                error <= 2.0 * tolerance,
                "{name}: position {i} off by {error}"
            );
        }
        let mut clear = 0;
        for (i, (token, gap)) in prompt
            .greedy_ids
            .iter()
            .zip(&prompt.greedy_top2_gaps)
            .enumerate()
        {
            if *gap > clear_gap && prompt.is_routed_alike(last + i, tolerance) {
                clear += 1;
                assert_eq!(
                    argmax(&logits[last + i]),
                    *token,
                    "{name}: greedy token {i}"
                );
            }
        }
        assert!(
            clear > prompt.greedy_ids.len() / 2,
            "{name}: only {clear} clear tokens"
        );
    }
}

#[test]
fn naive_backend_in_float32() {
    for (name, case) in distinct() {
        let texts = texts(&case.golden);
        for tp_size in [1, 2] {
            let feed = Feed {
                tp_size,
                ..Feed::plain(KvCacheDtype::Float32)
            };
            let found = logits(&case.model, &naive(), feed, &texts);
            check(name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

#[test]
fn cpu_backend_in_float32() {
    for (name, case) in cases() {
        let texts = texts(&case.golden);
        for tp_size in [1, 2, 4] {
            let feed = Feed {
                tp_size,
                ..Feed::plain(KvCacheDtype::Float32)
            };
            let found = logits(&case.model, &cpu(Dtype::Float32), feed, &texts);
            check(name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

/// transformers' own bf16 run bounds the error of bf16. It also rounds the residual stream,
/// which we keep in f32.
#[test]
fn cpu_backend_in_bfloat16() {
    for (number, (name, case)) in cases().enumerate() {
        let texts = texts(&case.golden);
        let reference = case.golden.bf16_max_logit_error;
        for (place, tp_size) in [1, 2, 4].into_iter().enumerate() {
            // What is emulated is slow, and no rank has other columns than those of some model.
            let emulates = number % 3 == place;
            let feed = Feed {
                tp_size,
                ..Feed::plain(KvCacheDtype::Bfloat16)
            };
            let run = |isa| {
                let factory = on(isa, Dtype::Bfloat16);
                logits(&case.model, &factory, feed, &texts)
            };
            let found: Vec<_> = kernels().take(1 + usize::from(emulates)).map(run).collect();
            for found in &found {
                check(name, &case.golden, found, reference, 2.0 * reference);
            }
            if Isa::detect() == Isa::Amx && emulates {
                assert!(
                    found[0] == found[1],
                    "{name}: tiles are not what is emulated"
                );
            }
        }
        for prompt in &case.golden.prompts {
            let error = max_error(&prompt.last_logits, &prompt.last_logits_bf16);
            assert!(
                error <= reference + 1e-3,
                "{name}: {error} against {reference}"
            );
        }
    }
}

/// Returns the root mean square error in units of the standard deviation of `exact`.
fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let mean = exact.iter().map(|&x| f64::from(x)).sum::<f64>() / exact.len() as f64;
    let sum = |terms: &mut dyn Iterator<Item = f64>| terms.map(|x| x * x).sum::<f64>();
    let errors = sum(&mut found.iter().zip(exact).map(|(a, b)| f64::from(a - b)));
    let spread = sum(&mut exact.iter().map(|&x| f64::from(x) - mean));
    (errors / spread).sqrt()
}

/// Rounding weights moves logits by a few hundredths of their spread with 8 bits and by some
/// tenths with 4 bits, on one rank and on two. It moves those of mixtures of experts by up to
/// twice as much, because it sends some tokens to another expert. A norm behind a block brings a
/// small output, and its error, to full size, so such models have a wider limit too. A short
/// convolution multiplies three projections with each other, which adds up their errors.
#[test]
fn quantized_weights_stay_near_the_reference() {
    for (format, limit) in [(Quantization::Int8, 0.05), (Quantization::Int4, 0.4)] {
        for (name, case) in distinct() {
            let products = case.has_short_convolutions();
            let limit = match (case.is_mixture() || products, case.norms_outputs()) {
                (true, _) => 2.0 * limit,
                (false, true) => 1.5 * limit,
                (false, false) => limit,
            };
            for tp_size in [1, 2] {
                let feed = Feed {
                    tp_size,
                    ..Feed::plain(KvCacheDtype::Bfloat16)
                };
                check_rounded(name, &case, format, feed, limit);
            }
        }
    }
}

/// Checks that logits of rounded weights are as near the reference as `limit` says.
fn check_rounded(name: &str, case: &Case, format: Quantization, feed: Feed, limit: f64) {
    let (model, texts) = (rounded(&case.model, format), texts(&case.golden));
    let found = logits(&model, &cpu(Dtype::Bfloat16), feed, &texts);
    for (prompt, logits) in case.golden.prompts.iter().zip(&found) {
        let last = &logits[prompt.ids.len() - 1];
        let error = relative_error(last, &prompt.last_logits);
        assert!(error <= limit, "{name} {format:?}: {error}");
    }
}

/// Chunk size, page size and other texts in a pass change no bit.
#[test]
fn chunked_and_batched_runs_are_bit_identical() {
    for (number, (name, case)) in distinct().enumerate() {
        let texts = texts(&case.golden);
        let formats = [
            (KvCacheDtype::Float32, Dtype::Float32, Quantization::None),
            (KvCacheDtype::Bfloat16, Dtype::Bfloat16, Quantization::None),
            (KvCacheDtype::Int8, Dtype::Bfloat16, Quantization::Int8),
            (KvCacheDtype::Bfloat16, Dtype::Bfloat16, Quantization::Int4),
        ];
        let chosen = formats.map(|format| (None, format));
        let emulated = kernels().skip(1).filter(|_| number % 4 == 0);
        let emulated = emulated.map(|isa| (isa, formats[1]));
        for (isa, (dtype, compute, weights)) in chosen.into_iter().chain(emulated) {
            let dtype = match dtype {
                KvCacheDtype::Int8 if case.has_latents() => KvCacheDtype::Bfloat16,
                dtype => dtype,
            };
            let (whole, factory) = (Feed::plain(dtype), on(isa, compute));
            let model = rounded(&case.model, weights);
            let expected = logits(&model, &factory, whole, &texts);
            for (page_size, chunk, together) in [(1, 7, true), (16, 50, false), (64, 1, true)] {
                let feed = Feed {
                    page_size,
                    chunk,
                    together,
                    ..whole
                };
                let found = logits(&model, &factory, feed, &texts);
                assert!(found == expected, "{name}: {feed:?} differs");
            }
        }
    }
}

//! Checkpoints of integers with scales.

use lockstep_types::{Dtype, KvCacheDtype};

use super::cuda::cuda;
use super::driver::{Feed, logits};
use super::{Case, F32_CLEAR_GAP, F32_TOLERANCE, case, check, cpu, naive, relative_error, texts};

const NAMES: [&str; 5] = [
    "llama_gptq",
    "qwen2_gptq_act_order",
    "deepseek_v3_awq",
    "qwen3_compressed",
    "qwen3_moe_auto_round",
];

fn feed(tp_size: usize) -> Feed {
    Feed {
        tp_size,
        ..Feed::plain(KvCacheDtype::Float32)
    }
}

/// Without rounding of inputs, logits are those of the dequantised weights, however many ranks cut
/// words and groups.
#[test]
fn values_of_integers_give_the_logits_of_their_tools() {
    for name in NAMES {
        let Case { model, golden } = case(name);
        let texts = texts(&golden);
        for tp_size in [1, 2, 4] {
            let found = logits(&model, &naive(), feed(tp_size), &texts);
            check(name, &golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

/// GPUs widen integers, and round no inputs in f32.
#[test]
fn integers_on_gpus_give_the_logits_of_their_tools() {
    for name in NAMES {
        let Case { model, golden } = case(name);
        let found = logits(&model, &cuda(Dtype::Float32, 1), feed(1), &texts(&golden));
        check(name, &golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
    }
}

/// Rounding inputs to 8 bits moves logits by a few hundredths of their spread. It may send a token
/// to another expert.
#[test]
fn integers_on_processors_stay_near_the_reference() {
    for name in NAMES {
        let case = case(name);
        let texts = texts(&case.golden);
        let limit = if case.is_mixture() { 0.1 } else { 0.05 };
        for (tp_size, dtype) in [
            (1, Dtype::Bfloat16),
            (2, Dtype::Float32),
            (4, Dtype::Bfloat16),
        ] {
            let found = logits(&case.model, &cpu(dtype), feed(tp_size), &texts);
            for (prompt, logits) in case.golden.prompts.iter().zip(&found) {
                let last = &logits[prompt.ids.len() - 1];
                let error = relative_error(last, &prompt.last_logits);
                assert!(error <= limit, "{name} on {tp_size}: {error}");
            }
        }
    }
}

/// Chunk size, page size and other texts in a pass change no bit.
#[test]
fn chunked_runs_of_integers_are_bit_identical() {
    for name in ["llama_gptq", "qwen3_compressed"] {
        let case = case(name);
        let texts = texts(&case.golden);
        let factory = cpu(Dtype::Bfloat16);
        let expected = logits(&case.model, &factory, feed(1), &texts);
        for (page_size, chunk, together) in [(1, 7, true), (16, 50, false)] {
            let feed = Feed {
                page_size,
                chunk,
                together,
                ..feed(1)
            };
            let found = logits(&case.model, &factory, feed, &texts);
            assert!(found == expected, "{name}: {feed:?} differs");
        }
    }
}

//! The golden gates with experts split by number: each group of ranks has whole experts of its own.
//! Logits are within the tolerances of experts that are split inside, and a token's bits depend on
//! its text alone.

use std::sync::Arc;

use lockstep_backend::Groups;
use lockstep_types::{Dtype, KvCacheDtype, Quantization};

use super::cuda::{DTYPES, gpus, tolerance};
use super::data_parallel::{self, staggered, variations, whole};
use super::{
    Case, F32_CLEAR_GAP, F32_TOLERANCE, cases, check, check_rounded, cpu, max_error, naive, named,
    rounded, texts,
};
use crate::driver::{Factory, Feed, logits};
use crate::world;

/// Numbers of ranks, and of groups of ranks that have experts of their own. In the last split two
/// ranks halve each expert.
const SPLITS: [(usize, usize); 3] = [(2, 2), (4, 4), (4, 2)];

/// Returns the mixtures that can be split by number: all but those without gates that have a shared
/// expert.
fn mixtures() -> impl Iterator<Item = (&'static str, Case)> {
    cases().filter(|(_, case)| case.is_mixture() && case.model.ep_sizes(2).contains(&2))
}

fn feed((tp_size, ep_size): (usize, usize), kv_dtype: KvCacheDtype) -> Feed {
    Feed {
        tp_size,
        ep_size,
        ..Feed::plain(kv_dtype)
    }
}

/// Experts whose number the groups divide, and do not; shared ones; biases; MXFP4.
#[test]
fn logits_are_those_of_experts_that_are_split_inside() {
    for (name, case) in mixtures() {
        let texts = texts(&case.golden);
        for split in SPLITS {
            let run = |split| {
                let feed = feed(split, KvCacheDtype::Float32);
                logits(&case.model, &cpu(Dtype::Float32), feed, &texts)
            };
            let (found, inside) = (run(split), run((split.0, 1)));
            let name = format!("{name} on {split:?}");
            check(&name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
            for (prompt, (found, inside)) in
                case.golden.prompts.iter().zip(found.iter().zip(inside))
            {
                for (at, (found, inside)) in found.iter().zip(inside).enumerate() {
                    let error = max_error(found, &inside);
                    let alike = prompt.is_routed_alike(at, F32_TOLERANCE);
                    assert!(error <= F32_TOLERANCE || !alike, "{name}: {error}");
                }
            }
        }
    }
}

#[test]
fn other_backends_and_formats_split_experts_by_number_too() {
    for (name, case) in mixtures() {
        let texts = texts(&case.golden);
        let plain = logits(
            &case.model,
            &naive(),
            feed((2, 2), KvCacheDtype::Float32),
            &texts,
        );
        check(name, &case.golden, &plain, F32_TOLERANCE, F32_CLEAR_GAP);
        let reference = case.golden.bf16_max_logit_error;
        for split in SPLITS {
            let feed = feed(split, KvCacheDtype::Bfloat16);
            let found = logits(&case.model, &cpu(Dtype::Bfloat16), feed, &texts);
            let name = format!("{name} on {split:?}");
            check(&name, &case.golden, &found, reference, 2.0 * reference);
        }
        for (format, limit) in [(Quantization::Int8, 0.1), (Quantization::Int4, 0.8)] {
            let feed = feed((2, 2), KvCacheDtype::Bfloat16);
            check_rounded(name, &case, format, feed, limit);
        }
    }
}

/// Chunk size, page size and other texts in a pass change no bit.
#[test]
fn chunks_and_company_change_no_bit() {
    let formats = [
        (KvCacheDtype::Float32, Dtype::Float32, Quantization::None),
        (KvCacheDtype::Bfloat16, Dtype::Bfloat16, Quantization::None),
        (KvCacheDtype::Int8, Dtype::Bfloat16, Quantization::Int4),
    ];
    let names = ["mixtral", "glm4_moe", "gpt_oss_mxfp4"];
    for (name, case) in named(&names) {
        let texts = texts(&case.golden);
        for (split, (kv_dtype, dtype, weights)) in [(2, 2), (4, 2)]
            .into_iter()
            .flat_map(|split| formats.map(|format| (split, format)))
        {
            let (model, factory) = (rounded(&case.model, weights), cpu(dtype));
            let whole = feed(split, kv_dtype);
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

/// With data-parallel attention the experts of a rank take rows of all DP ranks. Neighbours and
/// idle ranks change no bit.
#[test]
fn dp_ranks_share_experts_that_are_split_by_number() {
    let names = ["qwen3_moe", "glm4_moe", "gpt_oss"];
    for (name, case) in named(&names) {
        let texts = texts(&case.golden);
        for (tp_size, dp_size, ep_size) in [(2, 2, 2), (4, 2, 4), (4, 4, 2)] {
            let plain = world::WorldFeed {
                ep_size,
                ..staggered((tp_size, dp_size), KvCacheDtype::Float32, texts.len())
            };
            let factory = data_parallel::cpu(Dtype::Float32);
            let expected = world::logits(&case.model, &factory, &plain, &texts);
            for feed in variations(&plain) {
                let found = world::logits(&case.model, &factory, &feed, &texts);
                let rows = found.iter().flatten().zip(expected.iter().flatten());
                for (found, expected) in rows.filter(|(found, _)| found.is_some()) {
                    assert!(found == expected, "{name}: {feed:?} differs");
                }
            }
            let found = whole(expected);
            let name = format!("{name} on {tp_size} ranks of {dp_size} DP ranks, {ep_size} groups");
            check(&name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

/// Passes are recorded: their launches do not depend on the experts that a rank finds chosen.
#[test]
fn gpus_split_experts_by_number() {
    let names = ["mixtral", "qwen3_moe", "glm4_moe"];
    for (number, (name, case)) in named(&names).enumerate() {
        let texts = texts(&case.golden);
        let (dtype, kv_dtype) = DTYPES[number % 2];
        let (tolerance, clear_gap) = tolerance(&case, dtype);
        for (split, seed) in [(2, 2), (4, 2)].into_iter().zip(1..) {
            let open = gpus(dtype, seed);
            let factory: Factory<_> = Arc::new(move |group| open(Groups::from(group)));
            let feed = Feed {
                chunk: 11,
                together: true,
                ..feed(split, kv_dtype)
            };
            let found = logits(&case.model, &factory, feed, &texts);
            let name = format!("{name} on {split:?} in {dtype:?}");
            check(&name, &case.golden, &found, tolerance, clear_gap);
        }
        let feed = world::WorldFeed {
            ep_size: 2,
            ..staggered((2, 2), kv_dtype, texts.len())
        };
        let found = whole(world::logits(&case.model, &gpus(dtype, 9), &feed, &texts));
        check(name, &case.golden, &found, tolerance, clear_gap);
    }
}

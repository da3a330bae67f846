//! The golden gates with data-parallel attention. Logits are within the tolerances of tensor
//! parallelism. Their bits depend neither on the rank that a text runs on, nor on other
//! texts.

use std::sync::Arc;

use lockstep_backend_cpu::{CpuBackend, CpuOptions};
use lockstep_types::{Dtype, KvCacheDtype, Quantization};

use super::{
    Case, F32_CLEAR_GAP, F32_TOLERANCE, cases, check, distinct, max_error, named, rounded, texts,
};
use crate::naive::Naive;
use crate::ranks::WorldFactory;
use crate::world::{Found, Placed, WorldFeed, logits};

/// Numbers of ranks, and of DP ranks among them.
const SPLITS: [(usize, usize); 3] = [(2, 2), (4, 4), (4, 2)];

pub(super) fn cpu(dtype: Dtype) -> WorldFactory<CpuBackend> {
    Arc::new(move |groups| {
        let options = CpuOptions {
            threads: 1,
            dtype,
            pin: None,
            isa: None,
        };
        CpuBackend::new(options, groups).unwrap()
    })
}

/// Returns a feed whose texts begin one after the other, on one DP rank after the other, in
/// chunks. So some ranks are idle at first, and others at the end.
pub(super) fn staggered(
    (tp_size, dp_size): (usize, usize),
    kv_dtype: KvCacheDtype,
    texts: usize,
) -> WorldFeed {
    let placed = |text| Placed {
        dp_rank: (text + 1) % dp_size,
        start: 2 * text,
        every: 1,
    };
    WorldFeed {
        tp_size,
        dp_size,
        ep_size: 1,
        page_size: 16,
        kv_dtype,
        chunk: 11,
        texts: (0..texts).map(placed).collect(),
    }
}

/// Returns the logits of all positions.
pub(super) fn whole(found: Found) -> Vec<Vec<Vec<f32>>> {
    let text = |rows: Vec<Option<Vec<f32>>>| rows.into_iter().map(Option::unwrap).collect();
    found.into_iter().map(text).collect()
}

#[test]
fn attention_is_data_parallel_in_float32() {
    for (name, case) in cases() {
        let texts = texts(&case.golden);
        for split in SPLITS {
            if !divides(split, &case) {
                continue;
            }
            let feed = staggered(split, KvCacheDtype::Float32, texts.len());
            let factory = cpu(Dtype::Float32);
            let found = whole(logits(&case.model, &factory, &feed, &texts));
            let name = format!("{name} on {split:?}");
            check(&name, &case.golden, &found, F32_TOLERANCE, F32_CLEAR_GAP);
        }
    }
}

#[test]
fn attention_is_data_parallel_in_bfloat16() {
    for (name, case) in distinct() {
        let texts = texts(&case.golden);
        let reference = case.golden.bf16_max_logit_error;
        for split in SPLITS {
            if !divides(split, &case) {
                continue;
            }
            let feed = staggered(split, KvCacheDtype::Bfloat16, texts.len());
            let factory = cpu(Dtype::Bfloat16);
            let found = whole(logits(&case.model, &factory, &feed, &texts));
            let name = format!("{name} on {split:?}");
            check(&name, &case.golden, &found, reference, 2.0 * reference);
        }
    }
}

/// A device may gather and scatter in its own way. The naive device does so in the plainest.
#[test]
fn devices_agree_on_what_crosses() {
    for (name, case) in distinct() {
        let texts: Vec<_> = texts(&case.golden);
        for split in [(2, 2), (4, 2)] {
            if !divides(split, &case) {
                continue;
            }
            let feed = staggered(split, KvCacheDtype::Float32, texts.len());
            let naive: WorldFactory<Naive> = Arc::new(Naive::new);
            let plain = whole(logits(&case.model, &naive, &feed, &texts));
            check(name, &case.golden, &plain, F32_TOLERANCE, F32_CLEAR_GAP);
            let factory = cpu(Dtype::Float32);
            let found = whole(logits(&case.model, &factory, &feed, &texts));
            for (plain, found) in plain.iter().flatten().zip(found.iter().flatten()) {
                let error = max_error(plain, found);
                assert!(error <= F32_TOLERANCE, "{name} on {split:?}: {error}");
            }
        }
    }
}

/// The DP rank, other texts, chunks, pages and other wanted rows change no bit.
#[test]
fn where_a_text_runs_changes_no_bit() {
    let formats = [
        (KvCacheDtype::Float32, Dtype::Float32, Quantization::None),
        (KvCacheDtype::Bfloat16, Dtype::Bfloat16, Quantization::None),
        (KvCacheDtype::Int8, Dtype::Bfloat16, Quantization::Int8),
        (KvCacheDtype::Bfloat16, Dtype::Bfloat16, Quantization::Int4),
    ];
    let names = ["llama_bias", "qwen2_untied", "qwen3"];
    for (name, case) in named(&names) {
        for split in SPLITS {
            moved(name, &case, split, &formats);
        }
    }
    // Windows, and sinks with packed experts.
    let names = ["gemma3", "gpt_oss_mxfp4"];
    for (name, case) in named(&names) {
        moved(name, &case, (2, 2), &formats[..1]);
        moved(name, &case, (4, 2), &formats[1..2]);
    }
}

/// Types of keys and values and of weights, and the rounding of weights.
type Format = (KvCacheDtype, Dtype, Quantization);

/// Checks that [`variations`] of a feed change no bit.
fn moved(name: &str, case: &Case, split: (usize, usize), formats: &[Format]) {
    let texts = texts(&case.golden);
    for (kv_dtype, dtype, weights) in formats {
        let (factory, model) = (cpu(*dtype), rounded(&case.model, *weights));
        let plain = staggered(split, *kv_dtype, texts.len());
        let expected = logits(&model, &factory, &plain, &texts);
        for feed in variations(&plain) {
            let found = logits(&model, &factory, &feed, &texts);
            let rows = found.iter().flatten().zip(expected.iter().flatten());
            for (found, expected) in rows.filter(|(found, _)| found.is_some()) {
                assert!(found == expected, "{name}: {feed:?} differs");
            }
        }
    }
}

/// Returns feeds with other ranks, starts, chunks, pages and wanted rows.
pub(super) fn variations(plain: &WorldFeed) -> Vec<WorldFeed> {
    let dp_size = plain.dp_size;
    let with = |page_size, chunk, placed: &dyn Fn(usize) -> Placed| WorldFeed {
        page_size,
        chunk,
        texts: (0..plain.texts.len()).map(placed).collect(),
        ..plain.clone()
    };
    vec![
        // All on the last rank, one after the other; logits of the last token alone.
        with(4, usize::MAX, &|text| Placed {
            dp_rank: dp_size - 1,
            start: text,
            every: usize::MAX,
        }),
        // All at once, whole; some want all logits, some few.
        with(1, usize::MAX, &|text| Placed {
            dp_rank: text % dp_size,
            start: 0,
            every: 1 + 6 * (text % 2),
        }),
        // Uneven rows, and ranks that want nothing while others do.
        with(64, 7, &|text| Placed {
            dp_rank: (2 * text + 1) % dp_size,
            start: text % 3,
            every: 9 * (1 + text % dp_size),
        }),
    ]
}

pub(super) fn divides((tp_size, dp_size): (usize, usize), case: &Case) -> bool {
    case.model.common_heads().is_multiple_of(tp_size / dp_size)
}

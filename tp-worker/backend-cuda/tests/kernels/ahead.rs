//! Weights that attention fetches for the product behind it.

use lockstep_backend::AttentionShape;
use lockstep_backend_cuda::{Attention, Element, Floats};
use lockstep_fake_cuda::fetched;

use crate::faults::child;
use crate::requests::{Request, Run, attend, attend_before};
use crate::support::{Gpu, Noise, SEEDS, bits};

const SWITCH: &str = "LOCKSTEP_CUDA_PREFETCH";
const TEST: &str = "ahead::attention_fetches_what_is_next";

/// Bytes that `attend` has fetched more with `next` than without, for so many tokens. Results are
/// the same.
fn fetched_more(gpu: &Gpu, attention: &Attention, tokens: usize, next: &Floats) -> Option<u64> {
    let run = Run {
        shape: *attention.shape(),
        cached: Element::Bf16,
        operand: Element::Bf16,
        page_size: 4,
        parts: 64,
    };
    let requests: Vec<Request> = (0..tokens as u64)
        .map(|id| Request::causal(id, 30 + 90 * id as usize, 1))
        .collect();
    let mut found = Vec::new();
    for next in [None, Some(next)] {
        let before = fetched(c"attend");
        let values = attend_before(gpu, attention, &run, &requests, next);
        let values: Vec<_> = values.iter().map(|values| bits(values)).collect();
        let more = fetched(c"attend").zip(before);
        found.push((values, more.map(|(now, before)| now - before)));
    }
    let plain = attend(gpu, attention, &run, &requests);
    assert!(found.iter().all(|(values, _)| {
        let equal = values.iter().zip(&plain);
        equal
            .into_iter()
            .all(|(found, plain)| *found == bits(plain))
    }));
    found[1]
        .1
        .zip(found[0].1)
        .map(|(with, without)| with - without)
}

/// Whole units of 16 bytes are fetched where it is asked for, and of up to eight tokens.
#[test]
fn attention_fetches_what_is_next() {
    let gpu = Gpu::new();
    let shape = AttentionShape::dense(3, 1, 24, 0.2);
    let (context, compiler, bf16) = (&gpu.context, &gpu.compiler, Element::Bf16);
    let made = Attention::new(context, compiler, &shape, bf16, bf16);
    let attention = made.expect("kernels");
    let asked = std::env::var_os(SWITCH).is_some_and(|value| value == "1");
    for seed in SEEDS {
        let _order = lockstep_fake_cuda::order(seed);
        // Less than a unit, less than a piece, a piece and the begin of another, many.
        for len in [3, 1001, 8205, 100_003] {
            let next = gpu.floats(bf16, &Noise(seed).floats(len));
            for (tokens, fetches) in [(1, asked), (8, asked), (9, false)] {
                let Some(more) = fetched_more(&gpu, &attention, tokens, &next) else {
                    return; // A real device tells nothing.
                };
                let wanted = if fetches { len * 2 / 16 * 16 } else { 0 };
                assert_eq!(more, wanted as u64, "{len} values, {tokens} tokens");
            }
        }
    }
}

#[test]
fn weights_are_fetched_ahead_where_it_is_asked_for() {
    if !lockstep_fake_cuda::seed(1) {
        return; // A real device's compiler changes nothing.
    }
    let (passed, text) = child("", TEST, &[(SWITCH, "1")]);
    assert!(passed, "{text}");
    let past_the_end = "s/min(PIECE, a.ahead_bytes - piece . PIECE)/PIECE/";
    let (passed, text) = child(past_the_end, TEST, &[(SWITCH, "1")]);
    assert!(
        !passed && text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{text}"
    );
    let odd = "s/a.ahead + piece . PIECE/a.ahead + 8 + piece * PIECE/";
    let (passed, text) = child(odd, TEST, &[(SWITCH, "1")]);
    assert!(
        !passed && text.contains("CUDA_ERROR_MISALIGNED_ADDRESS"),
        "{text}"
    );
    let old = [(SWITCH, "1"), ("FAKE_CUDA_CAPABILITY", "89")];
    let (passed, text) = child("", TEST, &old);
    assert!(
        !passed && text.contains("leave LOCKSTEP_CUDA_PREFETCH out"),
        "{text}"
    );
}

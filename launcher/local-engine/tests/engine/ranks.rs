//! Splitting a model over ranks reorders its sums and changes nothing else.

use lockstep_local_engine::Completion;
use lockstep_types::Dtype;
use lockstep_types::sampling::SamplingParams;

use crate::{
    goldens::goldens,
    same::largest_difference,
    setup::{Setup, reported, together},
};

#[test]
fn ranks_agree_in_float32() {
    compare(Dtype::Float32, 2e-4);
}

#[test]
fn ranks_agree_in_bfloat16() {
    compare(Dtype::Bfloat16, 0.1);
}

/// Scores golden texts on one, two and four ranks; log-probabilities may
/// differ by `most`.
fn compare(dtype: Dtype, most: f32) {
    let whole = texts(dtype, 1);
    for tp in [2, 4] {
        for (i, (split, whole)) in texts(dtype, tp).iter().zip(&whole).enumerate() {
            let off = largest_difference(&split.prompt_logprobs, &whole.prompt_logprobs);
            assert!(off <= most, "text {i} on {tp} ranks is off by {off}");
        }
    }
}

fn texts(dtype: Dtype, tp: usize) -> Vec<Completion> {
    let goldens = goldens();
    let text = goldens.iter().step_by(3).map(|golden| {
        let text = [&golden.prompt_ids[..], &golden.output_ids].concat();
        reported(&text, 0, SamplingParams::greedy(), Some(0))
    });
    together(&mut Setup::demo(dtype, tp).start(), text.collect())
}
